"""Ways to rank directions or strategies at a state: the memory's own score and the baselines it has to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from artifacts.memory.attention import ATTENDED, AttentionSettings, attend, expected_gain
from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from builder.validate.decision_points import options_of

Estimates = Callable[[State], Mapping[str, float]]
"""Predicted log2 gain of every option at a state; options that tie rank equal."""
Ranker = Callable[[Memory, str], Estimates]
"""Learns from a training memory to rank its directions or strategies (the level), and looks at nothing else."""

NEAREST = 25
KAPPA = 1.0
"""Pseudo-observations of the mean over all neighbours that an option's own are shrunken with."""


def no_direction(memory: Memory, level: str) -> Estimates:
    """What the state lets expect, the same for every option: a choice by it is a random one."""
    options = options_of(memory, level).names
    return lambda state: dict.fromkeys(options, expected_gain(memory, state))


def popularity(memory: Memory, level: str) -> Estimates:
    """What was tried most often is tried again."""
    options = options_of(memory, level)
    counts = _sums(options.values, memory.columns.weight.astype(np.float64), len(options.names))
    shares = dict(zip(options.names, map(float, counts / max(counts.sum(), 1.0)), strict=True))
    return lambda state: shares


def neighbours(memory: Memory, level: str) -> Estimates:
    """Flat retrieval: mean gain of an option among the most similar past states."""
    options, gains, columns = options_of(memory, level), memory.gains, memory.columns
    known = np.flatnonzero(~np.isnan(gains) & (options.values >= 0) & (columns.weight > 0))

    def estimates(state: State) -> Mapping[str, float]:
        near = known[np.argsort(-similarity(columns, state)[known], kind="stable")[:NEAREST]]
        gain, weight = gains[near].astype(np.float64), columns.weight[near].astype(np.float64)
        overall = float(np.average(gain, weights=weight)) if len(near) else 0.0
        totals = _sums(options.values[near], weight, len(options.names))
        moments = _sums(options.values[near], weight * gain, len(options.names))
        means = (KAPPA * overall + moments) / (KAPPA + totals)
        return dict(zip(options.names, map(float, means), strict=True))

    return estimates


def memory_score(memory: Memory, level: str, settings: AttentionSettings | None = None) -> Estimates:
    """The memory's own score, see :mod:`artifacts.memory.attention`; as it is shipped without ``settings``."""
    used = settings or AttentionSettings()

    def estimates(state: State) -> Mapping[str, float]:
        view = attend(memory, (), state, used)
        if level == "direction":
            return {score.direction_id: score.mean for score in view.directions()}
        found = view.strategies(None, len(memory.strategies))
        return {score.strategy.strategy_id: score.mean for score in found}

    return estimates


def paper_score(memory: Memory, level: str) -> Estimates:
    """The paper's score, shown beside the shipped one."""
    return memory_score(memory, level, ATTENDED)


HTAM, PAPER, NO_DIRECTION = "htam", "attention to state and prefix", "no direction"
RANKERS: Mapping[str, Ranker] = {
    HTAM: memory_score,
    PAPER: paper_score,
    NO_DIRECTION: no_direction,
    "popularity": popularity,
    "nearest neighbours": neighbours,
}
"""By their names in reports: the shipped score, the paper's, and what both have to beat beside their own shuffles."""


def _sums(codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    inside = codes >= 0
    return np.bincount(codes[inside], weights=values[inside], minlength=count).astype(np.float64)
