"""Recorded transitions, seen from one state: how similar each is, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import CATEGORIES, NUMBERS, PREFIX, Bools, Columns, Floats, columns_of
from artifacts.memory.expectation import SCALES, credited, gains, number_of, scaled_number
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.trajectory import State

CATEGORY_WEIGHTS = {"family": 3.0, "bottleneck": 1.5, "language": 1.0, "size": 0.5, "dtype": 0.5, "last_outcome": 0.5}
NUMBER_WEIGHTS = {
    "fraction_of_bound": 1.0,
    "log2_speedup": 1.0,
    "log2_progress": 1.0,
    "log2_runtime": 0.5,
    "step": 0.5,
    "stagnation": 0.5,
}
FEATURE_WEIGHT = 2.0
UNKNOWN = 0.5
"""Similarity of a field that one side does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Rows of memory and overlay from the viewpoint of one state.

    Attributes:
        similarity: 0..1, 1 for the same state, and for all where states were not compared; ``same_arch``,
            ``same_language`` and ``same_family`` compare with the state's.
        operator: code of what was worked on; steps of one are not independent.
        previous, history: direction codes, newest first.
        identities: transition ids of the overlay rows, which follow the memory's.
    """

    memory: Memory
    identities: tuple[str, ...]
    similarity: Floats
    same_arch: Bools
    same_language: Bools
    same_family: Bools
    operator: npt.NDArray[np.int32]
    direction: npt.NDArray[np.int32]
    strategy: npt.NDArray[np.int32]
    previous: npt.NDArray[np.int32]
    gain: Floats
    advantage: Floats
    weight: Floats
    history: tuple[int, ...]

    def identity(self, row: int) -> str:
        """Transition id of a row."""
        if row < len(self.memory):
            return str(self.memory.table["transition_id"][row].as_py())
        return self.identities[row - len(self.memory)]


def experience(
    memory: Memory, overlay: Sequence[Transition], state: State, overlay_weight: float, *, compared: bool
) -> Experience:
    """What memory and overlay hold, seen from ``state``; ``compared=False`` leaves out similarity, which costs most."""
    columns = memory.columns
    history = tuple(columns.direction.code(name) for name in state.history[::-1][:PREFIX])
    seen = _seen(columns, state, compared) | {
        "gain": memory.gains,
        "advantage": memory.advantages,
        "weight": memory.credit,
    }
    if overlay:
        learnt = _overlay(memory, overlay, state, overlay_weight, compared)
        seen = {name: np.concatenate((seen[name], learnt[name])) for name in seen}
    identities = tuple(sorted(item.transition_id for item in overlay))
    return Experience(memory=memory, identities=identities, history=history, **seen)


def _seen(columns: Columns, state: State, compared: bool) -> dict[str, Any]:
    return {
        "similarity": similarity(columns, state) if compared else np.ones(len(columns), np.float32),
        "same_arch": _same(columns, "arch", state),
        "same_language": _same(columns, "language", state),
        "same_family": _same(columns, "family", state),
        "operator": columns.operator.values,
        "direction": columns.direction.values,
        "strategy": columns.strategy.values,
        "previous": columns.previous,
    }


def _overlay(
    memory: Memory, overlay: Sequence[Transition], state: State, weight: float, compared: bool
) -> dict[str, Any]:
    columns = columns_of(transition_rows(overlay), memory.columns.direction.names, memory.columns.strategy.names)
    gain = gains(columns)
    advantage, sure = credited(columns, gain, memory.expectation.line(columns))
    known = {name: code for code, name in enumerate(memory.columns.operator.names)}
    codes = [known.get(name, len(known) + at) for at, name in enumerate(columns.operator.names)]
    weighed = {
        "operator": np.array(codes, np.int32)[columns.operator.values],
        "gain": gain,
        "advantage": advantage,
        "weight": columns.weight * sure * np.float32(weight),
    }
    return _seen(columns, state, compared) | weighed


def similarity(columns: Columns, state: State) -> Floats:
    """Weighted agreement of each row's state with ``state``, 0..1; the architecture is left to its own discount."""
    total = FEATURE_WEIGHT + sum(CATEGORY_WEIGHTS.values()) + sum(NUMBER_WEIGHTS.values())
    result = _features_alike(columns, state) * np.float32(FEATURE_WEIGHT)
    for name in CATEGORIES:
        if name in CATEGORY_WEIGHTS:
            result += _category_alike(columns, name, state) * np.float32(CATEGORY_WEIGHTS[name])
    for name in NUMBERS:
        result += _number_alike(columns, name, state) * np.float32(NUMBER_WEIGHTS[name])
    return result / np.float32(total)


def _same(columns: Columns, name: str, state: State) -> Bools:
    column, text = columns.categories[name], _text(state, name)
    same: Bools = (column.values == column.code(text)) & (column.values >= 0)
    return same


def _text(state: State, name: str) -> str | None:
    value = getattr(state, name)
    return None if value is None else str(getattr(value, "value", value))


def _category_alike(columns: Columns, name: str, state: State) -> Floats:
    column, text = columns.categories[name], _text(state, name)
    # One entry a known value and a last one for rows without: a gather instead of a comparison of strings.
    alike = [_alike(known, text) for known in column.names] + [_alike(None, text)]
    found: Floats = np.array(alike, np.float32)[column.values]
    return found


def _alike(known: str | None, text: str | None) -> float:
    if "unknown" in (known, text):
        return UNKNOWN
    return float(known == text)


def _number_alike(columns: Columns, name: str, state: State) -> Floats:
    value = number_of(state, name)
    if value is None:
        return np.full(len(columns), UNKNOWN, np.float32)
    centre, scale = SCALES[name]
    distance = np.abs((columns.numbers[name] - np.float32(centre)) / np.float32(scale) - scaled_number(name, value))
    alike: Floats = np.maximum(np.float32(0.0), np.float32(1.0) - distance.astype(np.float32))
    return np.where(np.isnan(alike), np.float32(UNKNOWN), alike)


def _features_alike(columns: Columns, state: State) -> Floats:
    wanted = np.array([name in state.features for name in columns.feature_names], np.bool_)
    common = np.count_nonzero(columns.features[:, wanted], axis=1).astype(np.float32)
    either = np.count_nonzero(columns.features, axis=1).astype(np.float32) + np.float32(wanted.sum()) - common
    return np.where(either > 0, common / np.maximum(either, 1), np.float32(1.0)).astype(np.float32)
