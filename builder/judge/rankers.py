"""Ways to rank directions or strategies at a state: the memory's own score and the baselines it has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from artifacts.memory import attention
from artifacts.memory.attention import AttentionSettings
from artifacts.memory.columns import Codes
from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.state import State

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted log2 gain of an option and the standard deviation of that prediction."""

    mean: float
    spread: float


class Fitted(Protocol):
    """A ranker that has seen its training memory."""

    def estimates(self, state: State) -> Mapping[str, Estimate]:
        """Predicted gain of every option at ``state``; options that tie rank equal."""
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
class Constant:
    """Estimates that do not depend on the state; ``relative`` adds what the state lets expect."""

    memory: Memory
    values: Mapping[str, Estimate]
    relative: bool = False

    def estimates(self, state: State) -> Mapping[str, Estimate]:
        """The same at every state, up to the state's expectation."""
        if not self.relative:
            return self.values
        base = attention.expected_gain(self.memory, state)
        return {name: Estimate(base + value.mean, value.spread) for name, value in self.values.items()}


@dataclass(frozen=True, slots=True)
class StateOnly:
    """What the state alone lets expect, the same for every option: a choice by it is a random one."""

    name: str = "state only"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        spread = _residual(memory)
        return Constant(memory, {option: Estimate(0.0, spread) for option in options_of(memory, level).names}, True)


@dataclass(frozen=True, slots=True)
class Frequency:
    """What was tried most often is tried again."""

    name: str = "frequency prior"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        options = options_of(memory, level)
        counts = _sums(options.values, memory.columns.weight.astype(np.float64), len(options.names))
        share = counts / max(counts.sum(), 1.0)
        return Constant(memory, {name: Estimate(float(share[i]), 0.0) for i, name in enumerate(options.names)})


@dataclass(frozen=True, slots=True)
class BanditMeans:
    """Context-free shrunken means of the gain."""

    name: str = "bandit means"
    kappa: float = 5.0

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        options = options_of(memory, level)
        known = ~np.isnan(memory.gains)
        gain, weight = memory.gains[known].astype(np.float64), memory.columns.weight[known].astype(np.float64)
        overall = float(np.average(gain, weights=weight)) if weight.sum() else 0.0
        totals = _sums(options.values[known], weight, len(options.names))
        moments = _sums(options.values[known], weight * gain, len(options.names))
        means = (self.kappa * overall + moments) / (self.kappa + totals)
        noise = float(gain.std()) if len(gain) else 1.0
        spread = noise / np.sqrt(self.kappa + totals)
        return Constant(
            memory, {name: Estimate(float(means[i]), float(spread[i])) for i, name in enumerate(options.names)}
        )


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Flat retrieval: mean gain of an option among the most similar past states."""

    name: str = "flat nearest neighbours"
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

    def estimates(self, state: State) -> Mapping[str, Estimate]:
        options, gains = options_of(self.memory, self.level), self.memory.gains
        known = np.flatnonzero(~np.isnan(gains) & (options.values >= 0) & (self.memory.columns.weight > 0))
        near = known[np.argsort(-similarity(self.memory.columns, state)[known], kind="stable")[: self.k]]
        gain, weight = gains[near].astype(np.float64), self.memory.columns.weight[near].astype(np.float64)
        overall = float(np.average(gain, weights=weight)) if len(near) else 0.0
        totals = _sums(options.values[near], weight, len(options.names))
        moments = _sums(options.values[near], weight * gain, len(options.names))
        means = (self.kappa * overall + moments) / (self.kappa + totals)
        spread = (float(gain.std()) if len(near) else 1.0) / np.sqrt(self.kappa + totals)
        return {name: Estimate(float(means[i]), float(spread[i])) for i, name in enumerate(options.names)}


@dataclass(frozen=True, slots=True)
class Markov:
    """Mean gain of an option after the last direction, without looking at the state."""

    name: str = "Markov"
    kappa: float = 5.0

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        options, columns = options_of(memory, level), memory.columns
        known = ~np.isnan(memory.gains)
        gain, weight = memory.gains[known].astype(np.float64), columns.weight[known].astype(np.float64)
        count = len(options.names)
        overall = float(np.average(gain, weights=weight)) if weight.sum() else 0.0
        means = _shrunk(options.values[known], weight, gain, count, np.full(count, overall), self.kappa)
        last = columns.previous[known, 0]
        after = {}
        for code in (-1, *range(len(columns.direction.names))):
            here = last == code
            after[code] = _shrunk(options.values[known][here], weight[here], gain[here], count, means, self.kappa)
        return _FittedMarkov(columns.direction, options.names, after, float(gain.std()) if len(gain) else 1.0)


@dataclass(frozen=True, slots=True)
class _FittedMarkov:
    directions: Codes
    names: tuple[str, ...]
    after: Mapping[int, Array]
    noise: float

    def estimates(self, state: State) -> Mapping[str, Estimate]:
        last = self.directions.code(state.history[-1]) if state.history else -1
        return {name: Estimate(float(self.after[last][i]), self.noise) for i, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class Attention:
    """The memory's own score, see :mod:`artifacts.memory.attention`."""

    name: str = "htam"
    settings: AttentionSettings = field(default_factory=AttentionSettings)

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`Ranker`."""
        return _FittedAttention(memory, level, self.settings)


@dataclass(frozen=True, slots=True)
class _FittedAttention:
    memory: Memory
    level: str
    settings: AttentionSettings

    def estimates(self, state: State) -> Mapping[str, Estimate]:
        if self.level == "direction":
            scores = attention.score_directions(self.memory, (), state, self.settings)
            return {score.direction_id: Estimate(score.mean, score.spread) for score in scores}
        found = attention.score_strategies(self.memory, (), state, None, len(self.memory.strategies), self.settings)
        return {score.strategy.strategy_id: Estimate(score.mean, score.spread) for score in found}


def baselines() -> tuple[Ranker, ...]:
    """What the memory's own score has to beat, beside itself over shuffled memories (:mod:`builder.judge.deals`)."""
    return (StateOnly(), Frequency(), BanditMeans(), Neighbours(), Markov())


def options_of(memory: Memory, level: str) -> Codes:
    """Option of each row: its direction or its strategy."""
    return memory.columns.direction if level == "direction" else memory.columns.strategy


def _sums(codes: npt.NDArray[np.int32], values: Array, count: int) -> Array:
    inside = codes >= 0
    return np.bincount(codes[inside], weights=values[inside], minlength=count).astype(np.float64)


def _shrunk(codes: npt.NDArray[np.int32], weight: Array, gain: Array, count: int, prior: Array, kappa: float) -> Array:
    return (kappa * prior + _sums(codes, weight * gain, count)) / (kappa + _sums(codes, weight, count))


def _residual(memory: Memory) -> float:
    known = memory.advantages[~np.isnan(memory.advantages)]
    return float(known.std() / np.sqrt(max(len(known), 1))) if len(known) else 1.0
