"""Decision points: parents with several tried continuations, so that a choice can be scored by what others gained."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.memory.columns import Bools, Codes
from artifacts.memory.htg import Memory
from artifacts.memory.tables import transitions_of
from artifacts.task import operator_name
from artifacts.trajectory import State

LEVELS = ("direction", "strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPoint:
    """One parent, and the mean gain of each option (direction or strategy id) tried from it.

    Attributes:
        state: before the first of the siblings.
        gains: option to trust-weighted mean gain in log2, failures at the floor.
        rows: rows of the memory behind it.
    """

    task: str
    state: State
    gains: Mapping[str, float]
    rows: tuple[int, ...]


def decision_points(
    memory: Memory, level: str = "direction", *, among: Bools | None = None, least: int = 2
) -> tuple[DecisionPoint, ...]:
    """Parents of two measured children or more with at least ``least`` options of known gain, in the order of the rows.

    Args:
        level: one of :data:`LEVELS`.
        among: rows that are looked at; None for all.
    """
    columns, options = memory.columns, options_of(memory, level)
    known = ~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0)
    if among is not None:
        known &= among
    groups: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(known):
        groups[int(columns.siblings[row])].append(int(row))
    several = [
        rows for rows in groups.values() if len(rows) > 1 and len({int(options.values[row]) for row in rows}) >= least
    ]
    step = columns.numbers["step"]
    firsts = states_of(memory, np.array([min(rows, key=lambda row: (step[row], row)) for rows in several], np.int64))
    return tuple(
        DecisionPoint(
            task=columns.task.names[columns.task.values[rows[0]]],
            state=state,
            gains=_means(memory, rows, options),
            rows=tuple(rows),
        )
        for rows, state in zip(several, firsts, strict=True)
    )


def options_of(memory: Memory, level: str) -> Codes:
    """Option of each row: its direction or its strategy."""
    return memory.columns.direction if level == "direction" else memory.columns.strategy


def states_of(memory: Memory, rows: npt.NDArray[np.int64]) -> tuple[State, ...]:
    """States of the given rows, in their order."""
    return tuple(item.state for item in transitions_of(memory.table.take(pa.array(rows))))


def operator_folds(tasks: Iterable[str], folds: int) -> tuple[frozenset[str], ...]:
    """``tasks`` in at most ``folds`` groups that share no operator, whatever id each task has.

    Many small groups, because with few and large ones it is a matter of luck which operators are learnt from.
    """
    by_operator: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        by_operator[operator_name(task)].append(task)
    operators = sorted(by_operator, key=lambda name: (zlib.crc32(name.encode()), name))
    groups = (operators[fold::folds] for fold in range(min(folds, len(operators))))
    return tuple(frozenset(task for name in group for task in by_operator[name]) for group in groups)


def _means(memory: Memory, rows: list[int], options: Codes) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        name = options.names[options.values[row]]
        weight = memory.columns.weight[row]
        sums[name] += float(memory.gains[row] * weight)
        totals[name] += float(weight)
    return {name: sums[name] / totals[name] for name in sums}
