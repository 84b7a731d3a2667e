"""States in which a strategy fails more often than elsewhere, stated where both halves of the tasks agree.

Failures are compared with what their source lets expect, because logs differ more in how often steps fail than states
do. Over five public logs this finds states for four strategies, and for 0.4 when failures are dealt out at random.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Columns
from artifacts.memory.conditions import LEAST_Z, Doubles, candidates, contrast
from artifacts.memory.htg import Memory
from artifacts.memory.records import Condition, Strategy

FEWEST = 5
"""Failures on the worse side."""
FEWEST_IN_HALF = 3
EVIDENCE = 10
MOST_ROWS = 20_000
"""Transitions of a strategy that are looked at, the first by id; what differs clearly shows in these."""
Rows = npt.NDArray[np.intp]


def with_risky_states(memory: Memory) -> Memory:
    """``memory`` with one more risk for each strategy whose failures gather in some state."""
    columns = memory.columns
    unexpected = columns.failed - _rates(columns)[columns.source.values]
    half = np.array([zlib.crc32(f"half:{name}".encode()) % 2 for name in columns.task.names])[columns.task.values]
    strategies = []
    for code, strategy in enumerate(memory.strategies):
        rows = np.flatnonzero(columns.strategy.values == code)[:MOST_ROWS]
        found = _worst(columns, rows, unexpected, half) if columns.failed[rows].sum() >= FEWEST else None
        strategies.append(strategy if found is None else _stated(memory, strategy, rows, *found))
    return replace(memory, strategies=tuple(strategies))


def _rates(columns: Columns) -> Doubles:
    """Share of failed steps of each source."""
    count = len(columns.source.names)
    failed = np.bincount(columns.source.values, weights=columns.failed, minlength=count)
    return failed / np.maximum(np.bincount(columns.source.values, minlength=count), 1)


def _worst(
    columns: Columns, rows: Rows, unexpected: Doubles, half: npt.NDArray[np.int_]
) -> tuple[Condition, npt.NDArray[np.bool_]] | None:
    """Predicate on whose side the strategy fails most clearly more often, and the rows there."""
    values, weights = unexpected[rows], columns.weight[rows].astype(np.float64)
    best, strongest = None, LEAST_Z
    for condition, opposite, inside in candidates(columns, rows):
        score = contrast(values, weights, inside)
        if abs(score) <= strongest:
            continue
        side = inside if score > 0 else ~inside
        agreed = all(
            contrast(values[part], weights[part], side[part], FEWEST_IN_HALF) > 0
            for part in (half[rows] == number for number in (0, 1))
        )
        lost = columns.failed[rows]
        # What holds against the sources' rates but not in plain numbers would read like a mistake.
        if agreed and lost[side].sum() >= FEWEST and lost[side].mean() > lost[~side].mean():
            best, strongest = (condition if score > 0 else opposite, side), abs(score)
    return best


def _stated(
    memory: Memory, strategy: Strategy, rows: Rows, condition: Condition, side: npt.NDArray[np.bool_]
) -> Strategy:
    failed = memory.columns.failed
    there, elsewhere = rows[side], rows[~side]
    lost = there[failed[there]]
    words = (
        f"You cannot count on it where {condition.words}: {len(lost)} of {len(there)} attempts failed there, "
        f"{int(failed[elsewhere].sum())} of {len(elsewhere)} elsewhere"
    )
    evidence = tuple(memory.table["transition_id"].take(lost[:EVIDENCE]).to_pylist())
    return replace(strategy, risks=(words, *strategy.risks), risk_evidence=(evidence, *strategy.risk_evidence))
