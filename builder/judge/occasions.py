"""Occasions: parents with several tried continuations, so that a choice can be scored by what others gained."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Codes, Floats
from artifacts.memory.htg import Memory
from artifacts.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """One parent, and the mean gain of each option (direction or strategy id) tried from it.

    Attributes:
        state: before the first of the siblings.
        gains: option to trust-weighted mean gain in log2, failures at the floor.
        kept: the same where a search keeps its best: what failed or got slower gained nothing and cost nothing.
        rows: rows of the memory behind it.
    """

    task: str
    source: str
    arch: str
    state: State
    gains: Mapping[str, float]
    kept: Mapping[str, float]
    rows: tuple[int, ...]


def occasions(memory: Memory, level: str = "direction") -> tuple[Occasion, ...]:
    """Occasions with at least two options of known gain, in the order of the rows.

    Args:
        level: ``direction`` or ``strategy``.
    """
    columns = memory.columns
    options = columns.direction if level == "direction" else columns.strategy
    known = ~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0)
    groups: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(known):
        groups[int(columns.siblings[row])].append(int(row))
    several = [rows for rows in groups.values() if len({int(options.values[row]) for row in rows}) > 1]
    kept = np.maximum(memory.gains, np.float32(0.0))
    firsts = states_of(memory, np.array([_first(memory, rows) for rows in several], np.int64))
    return tuple(
        Occasion(
            task=columns.task.names[columns.task.values[rows[0]]],
            source=columns.source.names[columns.source.values[rows[0]]],
            arch=state.arch,
            state=state,
            gains=_means(memory.gains, columns.weight, rows, options),
            kept=_means(kept, columns.weight, rows, options),
            rows=tuple(rows),
        )
        for rows, state in zip(several, firsts, strict=True)
    )


def states_of(memory: Memory, rows: npt.NDArray[np.int64]) -> tuple[State, ...]:
    """States of the given rows, in their order."""
    mask = np.zeros(len(memory), np.bool_)
    mask[rows] = True
    order = np.flatnonzero(mask)
    found = {int(row): item.state for row, item in zip(order, memory.transitions(mask), strict=True)}
    return tuple(found[int(row)] for row in rows)


def fold_of(task: str, folds: int, seed: int = 0) -> int:
    """Fold of a task: the same in every memory, whatever else it holds."""
    return zlib.crc32(f"{seed}:{task}".encode()) % folds


def _first(memory: Memory, rows: list[int]) -> int:
    step = memory.columns.numbers["step"]
    return min(rows, key=lambda row: (step[row], row))


def _means(values: Floats, weights: Floats, rows: list[int], options: Codes) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        name = options.names[options.values[row]]
        sums[name] += float(values[row] * weights[row])
        totals[name] += float(weights[row])
    return {name: sums[name] / totals[name] for name in sums}
