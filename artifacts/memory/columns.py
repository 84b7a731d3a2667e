"""Transitions as numpy columns: what filtering, statistics and attention compute on.

A million transitions are a few hundred megabytes here and would be gigabytes as Python objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.measurement import Outcome
from artifacts.task import operator_name

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

CATEGORIES = ("family", "arch", "language", "dtype", "size", "bottleneck", "last_outcome")
NUMBERS = ("fraction_of_bound", "log2_speedup", "log2_progress", "log2_runtime", "step", "stagnation")
PREFIX = 4
"""Past directions of a lineage that are kept for attention."""
MANY, LOST = 20, 0.02
LARGEST = 4.0
"""Log2 gain or loss beyond which a step says no more than that it was large: rewards are cut there."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A categorical column: ``values[i]`` indexes ``names``; -1 where there is none."""

    names: tuple[str, ...]
    values: Ints

    def code(self, name: str | None) -> int:
        """Index of ``name``, -1 when the column never holds it."""
        return self.names.index(name) if name in self.names else -1

    def among(self, wanted: Collection[str]) -> Bools:
        """Rows whose name is one of ``wanted``."""
        names = set(wanted)
        mask: Bools = np.array([name in names for name in self.names] + [False], np.bool_)[self.values]
        return mask


@dataclass(frozen=True, slots=True)
class Columns:
    """All that scoring looks at, row by row.

    Attributes:
        categories, numbers: state fields by name; numbers are NaN where unknown.
        features: which of ``feature_names`` the parent has, shape [n, names].
        previous: direction codes of the last steps, newest first, -1 before the first; shape [n, PREFIX].
        reward, expected: log2 gains, NaN where unknown; rewards are cut at :data:`LARGEST` either way.
        rated: the source records what lost as well: its steps tell how often steps gain; see :func:`_rated`.
        failed: the candidate is to blame for an incorrect child; ``parent_timed``: there was a time to lose or win.
        task, operator, source, siblings, plan: codes for grouping; plans of one text share theirs.
    """

    direction: Codes
    strategy: Codes
    categories: Mapping[str, Codes]
    numbers: Mapping[str, Floats]
    feature_names: tuple[str, ...]
    features: Bools
    previous: Ints
    reward: Floats
    expected: Floats
    rated: Bools
    failed: Bools
    parent_timed: Bools
    weight: Floats
    task: Codes
    operator: Codes
    source: Codes
    siblings: Ints
    plan: Ints

    def __len__(self) -> int:
        return len(self.reward)


def columns_of(table: pa.Table, direction_ids: tuple[str, ...], strategy_ids: tuple[str, ...]) -> Columns:
    """Read the columns out of a transitions table; ids that are not listed get code -1 (noise)."""
    feature_names, features = _features(table["state_features"])
    task, source = codes(table["task_id"]), codes(table["source"])
    reward = np.clip(_floats(table["reward"]), -LARGEST, LARGEST)
    return Columns(
        direction=_coded(table["direction_id"], direction_ids),
        strategy=_coded(table["strategy_id"], strategy_ids),
        categories={name: codes(table[f"state_{name}"]) for name in CATEGORIES},
        numbers=_numbers(table),
        feature_names=feature_names,
        features=features,
        previous=_previous(table["state_history"], direction_ids),
        reward=reward,
        expected=_floats(table["expected"]),
        rated=_rated(source, reward),
        failed=_failed(table["outcome"]),
        parent_timed=~np.isnan(_floats(table["parent_us"])),
        weight=_floats(table["weight"]),
        task=task,
        operator=_operators(task),
        source=source,
        siblings=codes(table["siblings"]).values,
        plan=codes(table["plan"]).values,
    )


def codes(column: pa.ChunkedArray) -> Codes:
    """Categories of a text or dictionary column."""
    chunk = _one_chunk(column)
    if not pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_encode()
    indices = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    return Codes(tuple(chunk.dictionary.to_pylist()), indices)


def _operators(task: Codes) -> Codes:
    """What the tasks compute, whatever ids they have."""
    named = [operator_name(name) for name in task.names]
    names, which = np.unique(np.array([*named, ""]), return_inverse=True)
    return Codes(tuple(map(str, names)), which.astype(np.int32)[task.values])


def _rated(source: Codes, reward: Floats) -> Bools:
    """Rows of sources that do not hold winners alone.

    A source with :data:`MANY` timed steps, of which fewer than :data:`LOST` are no faster than their parents, was
    filtered by what it reports: it has recipes and kernels, and says nothing of how often or how much steps gain.
    """
    count = len(source.names)
    timed = np.bincount(source.values, ~np.isnan(reward), count)
    lost = np.bincount(source.values, reward <= 0, count)
    rated: Bools = ((timed < MANY) | (lost >= LOST * timed))[source.values]
    return rated


def _one_chunk(column: pa.ChunkedArray) -> Any:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], type=combined.type)
    return combined


def _coded(column: pa.ChunkedArray, names: tuple[str, ...]) -> Codes:
    found = codes(column)
    position = {name: index for index, name in enumerate(names)}
    lookup = np.array([position.get(name, -1) for name in found.names] + [-1], np.int32)
    return Codes(names, lookup[found.values])


def _floats(column: pa.ChunkedArray) -> Floats:
    values: Floats = _one_chunk(column.cast(pa.float32())).to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return values


def _numbers(table: pa.Table) -> dict[str, Floats]:
    numbers = {name: _floats(table[f"state_{name}"]) for name in NUMBERS if name != "log2_runtime"}
    numbers["log2_runtime"] = np.log2(_floats(table["state_runtime_us"]))
    return numbers


def _failed(column: pa.ChunkedArray) -> Bools:
    found = codes(column)
    blamed = [Outcome(name) is not Outcome.CORRECT and Outcome(name).charged_to_candidate for name in found.names]
    failed: Bools = np.array(blamed, np.bool_)[found.values] if blamed else np.zeros(0, np.bool_)
    return failed


def _features(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Bools]:
    sets = codes(column)
    split = [frozenset(text.split()) for text in sets.names]
    names = tuple(sorted(frozenset[str]().union(*split)))
    table = np.array([[name in members for name in names] for members in (*split, frozenset())], np.bool_)
    return names, table[sets.values]


def _previous(column: pa.ChunkedArray, direction_ids: tuple[str, ...]) -> Ints:
    paths = codes(column)
    table = np.full((len(paths.names) + 1, PREFIX), -1, np.int32)
    position = {name: index for index, name in enumerate(direction_ids)}
    for row, path in enumerate(paths.names):
        newest_first = path.split()[::-1][:PREFIX]
        table[row, : len(newest_first)] = [position.get(name, -1) for name in newest_first]
    return table[paths.values]
