"""Permuted memories as a control: one permutation of the labels is a matter of luck, many are a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from artifacts.memory.htg import Memory
from builder.validate.rankers import Estimates, memory_score
from builder.validate.replay import Record, Split, mean_regret, run

PERMUTATIONS = 19
"""Beating them all is a one-sided test at 5 %."""
PERMUTED = "permuted memory"
LATEST = 2
"""Place among siblings from which on labels are exchanged with each other: first, second, later."""


def run_permuted(splits: Sequence[Split], level: str) -> tuple[tuple[Record, ...], ...]:
    """Records of the memory's score over each of :data:`PERMUTATIONS` permuted memories."""

    def ranker(memory: Memory, level: str, *, seed: int) -> Estimates:
        return memory_score(permuted(memory, seed), level)

    return tuple(run(splits, {PERMUTED: partial(ranker, seed=seed)}, level) for seed in range(PERMUTATIONS))


def chance(records: Sequence[Record], controls: Sequence[Sequence[Record]]) -> float:
    """Probability that permuted labels rank as well as ``records`` of one ranker, each task counting once."""
    ours = mean_regret(records)
    return (1 + sum(mean_regret(control) <= ours for control in controls)) / (1 + len(controls))


def permuted(memory: Memory, seed: int) -> Memory:
    """``memory`` with the pairs (direction, strategy) permuted among rows of one source and place.

    A log that continues from its best candidate tries until something gains, so that what is tried late gains more
    whatever it is. The place among siblings is kept, so that the control knows as much of that as the memory does.
    """
    random, columns = np.random.default_rng(seed), memory.columns
    strata = columns.source.values.astype(np.int64) * (LATEST + 1) + np.minimum(_places(memory), LATEST)
    order = np.arange(len(memory))
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        order[rows] = random.permutation(rows)
    return memory.relabelled(order)


def _places(memory: Memory) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Place of each row among its siblings by step, from 0; what was tried in one step shares its place."""
    columns = memory.columns
    step = columns.numbers["step"]
    order = np.lexsort((step, columns.siblings))
    another = np.diff(columns.siblings[order], prepend=-1) != 0
    later = np.diff(step[order], prepend=step[:1]) != 0
    rank = np.cumsum(later | another)
    places = np.empty(len(order), np.int64)
    places[order] = rank - np.maximum.accumulate(np.where(another, rank, 0))
    return places
