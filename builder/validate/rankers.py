"""Ways to rank directions or strategies at a state: the memory's own score and the baselines it has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from artifacts.memory.attention import ATTENDED, AttentionSettings, attend, expected_gain
from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from builder.validate.decision_points import options_of


class Fitted(Protocol):
    """A ranker that has seen its training memory."""

    def estimates(self, state: State) -> Mapping[str, float]:
        """Predicted log2 gain of every option at ``state``; options that tie rank equal."""
        ...


class Ranker(Protocol):
    """A way to rank options. ``fit`` may look at the training memory only."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def fit(self, memory: Memory, level: str) -> Fitted:
        """Learn from ``memory``; ``level`` is ``direction`` or ``strategy``."""
        ...


@dataclass(frozen=True, slots=True)
class NoDirection:
    """What the state lets expect, the same for every option: a choice by it is a random one."""

    name: str = "no direction"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        return _Expected(memory, options_of(memory, level).names)


@dataclass(frozen=True, slots=True)
class _Expected:
    memory: Memory
    options: tuple[str, ...]

    def estimates(self, state: State) -> Mapping[str, float]:
        return dict.fromkeys(self.options, expected_gain(self.memory, state))


@dataclass(frozen=True, slots=True)
class Popularity:
    """What was tried most often is tried again."""

    name: str = "popularity"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        options = options_of(memory, level)
        counts = _sums(options.values, memory.columns.weight.astype(np.float64), len(options.names))
        return _Constant(dict(zip(options.names, map(float, counts / max(counts.sum(), 1.0)), strict=True)))


@dataclass(frozen=True, slots=True)
class _Constant:
    values: Mapping[str, float]

    def estimates(self, state: State) -> Mapping[str, float]:
        return self.values


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Flat retrieval: mean gain of an option among the most similar past states."""

    name: str = "nearest neighbours"
    k: int = 25
    kappa: float = 1.0

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        return _FittedNeighbours(memory, level, self.k, self.kappa)


@dataclass(frozen=True, slots=True)
class _FittedNeighbours:
    memory: Memory
    level: str
    k: int
    kappa: float

    def estimates(self, state: State) -> Mapping[str, float]:
        options, gains, columns = options_of(self.memory, self.level), self.memory.gains, self.memory.columns
        known = np.flatnonzero(~np.isnan(gains) & (options.values >= 0) & (columns.weight > 0))
        near = known[np.argsort(-similarity(columns, state)[known], kind="stable")[: self.k]]
        gain, weight = gains[near].astype(np.float64), columns.weight[near].astype(np.float64)
        overall = float(np.average(gain, weights=weight)) if len(near) else 0.0
        totals = _sums(options.values[near], weight, len(options.names))
        moments = _sums(options.values[near], weight * gain, len(options.names))
        means = (self.kappa * overall + moments) / (self.kappa + totals)
        return dict(zip(options.names, map(float, means), strict=True))


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """The memory's own score, see :mod:`artifacts.memory.attention`."""

    name: str = "htam"
    settings: AttentionSettings = field(default_factory=AttentionSettings)

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        return _FittedScore(memory, level, self.settings)


@dataclass(frozen=True, slots=True)
class _FittedScore:
    memory: Memory
    level: str
    settings: AttentionSettings

    def estimates(self, state: State) -> Mapping[str, float]:
        view = attend(self.memory, (), state, self.settings)
        if self.level == "direction":
            return {score.direction_id: score.mean for score in view.directions()}
        found = view.strategies(None, len(self.memory.strategies))
        return {score.strategy.strategy_id: score.mean for score in found}


PAPER = MemoryScore("attention to state and prefix", ATTENDED)
"""The paper's score, shown beside the shipped one."""


def baselines() -> tuple[Ranker, ...]:
    """What the memory's own score has to beat, beside itself over permuted memories."""
    return (NoDirection(), Popularity(), Neighbours())


def _sums(codes: npt.NDArray[np.int32], values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    inside = codes >= 0
    return np.bincount(codes[inside], weights=values[inside], minlength=count).astype(np.float64)
