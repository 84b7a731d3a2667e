"""What past transitions say about the next step from a state. Pure and explainable.

Each recorded transition speaks for its direction with its trust, discounted on other devices. What it says is its
*advantage*: its gain beyond its siblings, the other children of its parent. The mean over our operator family
in our language backs off to that over our language and that to the mean over all, each shrunken towards the next.

That is the score that is shipped, because replay found nothing that attention to states and lineages adds to it
(docs/decisions/0006-means-over-siblings.md). The paper's attention is a setting, :data:`ATTENDED`: a last level, in
which transition i counts ``exp((similarity(x_i, s) - 1) / temperature)`` times, and where its lineage came the same way
as ours again that much times ``sum_j decay^j [p_ij = h_j]``.

Replay (builder) and selection (optimizer) call the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import PREFIX
from artifacts.memory.effects import holds
from artifacts.memory.experience import Experience, experience
from artifacts.memory.htg import Memory
from artifacts.memory.records import Direction, Strategy, Transition
from artifacts.trajectory import State

Array = npt.NDArray[np.float64]
EVIDENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """Parameters of the score; defaults are what replay chose, see docs/explanation/memory.md.

    Attributes:
        temperature: of the similarity, smaller looks only at near states; None takes all states for alike.
        kappa: pseudo-observations that a level of back-off is worth to the next; ``family`` the same for the family's.
        decay: weight of the j-th last direction of the prefix is ``decay ** j``; 1 is uniform.
        prefix: strength of agreement with the lineage, 0 does not look at it.
        arch_discount: factor on experience from another device architecture.
        overlay: factor on what the run itself learnt.
        advantage: False credits a direction with its raw gain, not with what it adds to the state.
        saturated: fraction of the bound from which directions that relieve the bottleneck are masked.
    """

    temperature: float | None = None
    kappa: float = 20.0
    family: float = 60.0
    decay: float = 0.5
    prefix: float = 0.0
    arch_discount: float = 0.5
    overlay: float = 2.0
    advantage: bool = True
    saturated: float = 0.9

    def __post_init__(self) -> None:
        if min(self.kappa, self.family) <= 0 or (self.temperature is not None and self.temperature <= 0):
            given = f"{self.temperature}, {self.kappa} and {self.family}"
            raise ValueError(f"temperature, kappa and family must be positive, got {given}")
        if not 0 < self.decay <= 1 or not 0 <= self.arch_discount <= 1 or self.prefix < 0 or self.overlay < 0:
            raise ValueError("decay and arch_discount lie in 0..1, prefix and overlay are not negative")


ATTENDED = AttentionSettings(temperature=0.3, prefix=1.0)
"""Attention to similar states and to the directions taken before, as the paper has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionScore:
    """What to expect of one direction.

    Attributes:
        mean: expected log2 gain of the next step, ``spread`` the standard deviation of that mean.
        effective_n: how many operators the mean rests on, in our language or among those attended to: steps of one are
            not independent, so that however many there are they count for one, and for less where their weights do.
        prior: expected log2 gain before looking at the language, the family and similar states.
        masked: why the direction is out of the question; empty when it is not.
        evidence: (transition id, its share in the mean), the strongest first.
    """

    direction_id: str
    mean: float
    spread: float
    effective_n: float
    prior: float
    masked: str
    evidence: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyScore:
    """What to expect of one strategy; ``holds`` when all its conditions are met."""

    strategy: Strategy
    mean: float
    spread: float
    effective_n: float
    holds: bool


@dataclass(frozen=True)
class Attention:
    """What memory and overlay say from one state, worked out once for all that is asked of it.

    Build it with :func:`attend`. Not slotted because cached properties need a ``__dict__``.
    """

    past: Experience
    state: State
    settings: AttentionSettings

    def directions(self) -> tuple[DirectionScore, ...]:
        """Score every direction for the next step, in the order of the memory."""
        found, directions = self._by_direction, self.past.memory.directions
        evidence = _evidence(self.past, found, len(directions))
        return tuple(
            DirectionScore(
                direction_id=direction.direction_id,
                mean=self._base + float(found.mean[code]),
                spread=float(found.spread[code]),
                effective_n=float(found.effective_n[code]),
                prior=self._base + float(found.prior[code]),
                masked=saturation(direction, self.state, self.settings),
                evidence=evidence[code],
            )
            for code, direction in enumerate(directions)
        )

    def strategies(self, direction_id: str | None, limit: int) -> tuple[StrategyScore, ...]:
        """The ``limit`` best strategies of a direction (of all when None): conditions that hold first, then by mean."""
        found = self._by_strategy
        scores = [
            StrategyScore(
                strategy=strategy,
                mean=self._base + float(found.mean[code]),
                spread=float(found.spread[code]),
                effective_n=float(found.effective_n[code]),
                holds=all(holds(condition, self.state) for condition in strategy.when),
            )
            for code, strategy in enumerate(self.past.memory.strategies)
            if direction_id is None or strategy.direction_id == direction_id
        ]
        scores.sort(key=lambda score: (not score.holds, -score.mean, score.strategy.strategy_id))
        return tuple(scores[:limit])

    @cached_property
    def _base(self) -> float:
        return expected_gain(self.past.memory, self.state) if self.settings.advantage else 0.0

    @cached_property
    def _levels(self) -> tuple[_Level, ...]:
        """Weight of each row at each level of back-off, all experience first."""
        past, settings = self.past, self.settings
        every = past.weight.astype(np.float64) * np.where(past.same_arch, 1.0, settings.arch_discount)
        language = every * past.same_language
        levels = [_Level(every, settings.kappa), _Level(language, settings.kappa, counts=True)]
        levels.append(_Level(language * past.same_family, settings.family))
        if settings.temperature is None and not settings.prefix:
            return tuple(levels)
        near = every
        if settings.temperature is not None:
            near = near * np.exp((past.similarity.astype(np.float64) - 1.0) / settings.temperature)
        return (*levels, _Level(near * (1.0 + _prefix_match(past, settings)), settings.kappa, counts=True))

    @cached_property
    def _by_direction(self) -> _Posterior:
        count = len(self.past.memory.directions)
        return _posterior(self.past, self._levels, self.past.direction, self.settings, np.zeros(count))

    @cached_property
    def _by_strategy(self) -> _Posterior:
        memory = self.past.memory
        position = {direction.direction_id: code for code, direction in enumerate(memory.directions)}
        parents = np.array([position[strategy.direction_id] for strategy in memory.strategies], np.int64)
        start = self._by_direction.mean[parents]
        return _posterior(self.past, self._levels, self.past.strategy, self.settings, start)


def attend(memory: Memory, overlay: Sequence[Transition], state: State, settings: AttentionSettings) -> Attention:
    """Look at ``memory`` and ``overlay`` from ``state``; who asks for directions and strategies does so of one view."""
    compared = settings.temperature is not None
    return Attention(experience(memory, overlay, state, settings.overlay, compared=compared), state, settings)


def expected_gain(memory: Memory, state: State) -> float:
    """Log2 gain that the state predicts for the next step, whatever its direction: the no-direction baseline."""
    return memory.expectation.predict_state(state)


def saturation(direction: Direction, state: State, settings: AttentionSettings) -> str:
    """Why ``direction`` cannot help any more in ``state``; empty when it can."""
    reached = state.fraction_of_bound
    if not direction.resource or reached is None or reached < settings.saturated:
        return ""
    if state.bottleneck.value != direction.resource:
        return ""
    return f"{direction.resource} is saturated: {reached:.0%} of the bound is reached"


@dataclass(frozen=True, slots=True)
class _Level:
    weight: Array
    kappa: float
    counts: bool = False
    """Whether the effective number of observations is counted here; of several levels, in the last."""


@dataclass(frozen=True, slots=True)
class _Posterior:
    mean: Array
    spread: Array
    effective_n: Array
    prior: Array
    pull: Array
    """How much each row moves its group's mean."""


def _posterior(
    past: Experience,
    levels: Sequence[_Level],
    groups: npt.NDArray[np.int32],
    settings: AttentionSettings,
    start: Array,
) -> _Posterior:
    """Posterior of each of the ``len(start)`` groups, shrunken towards ``start`` at the last."""
    known, count = (groups >= 0) & ~np.isnan(past.gain), len(start)
    which = groups[known]
    said = (past.advantage if settings.advantage else past.gain)[known].astype(np.float64)

    def total_of(values: Array) -> Array:
        return np.bincount(which, weights=values, minlength=count).astype(np.float64)

    means, effective, share = [start], np.zeros(count), np.zeros(len(said))
    for level in levels:
        weight = level.weight[known]
        total = total_of(weight)
        means.append((level.kappa * means[-1] + total_of(weight * said)) / (level.kappa + total))
        share = (level.kappa * share + weight * said) / (level.kappa + total[which])
        if level.counts:
            effective = _operators(which, past.operator[known], weight, count)
    trusted = past.weight[known].astype(np.float64)
    noise = float(np.sqrt(np.average(said**2, weights=trusted))) if trusted.sum() > 0 else 1.0
    pull = np.zeros(len(groups))
    pull[known] = share
    return _Posterior(means[-1], noise / np.sqrt(settings.kappa + effective), effective, means[1], pull)


def _operators(groups: npt.NDArray[np.int32], operators: npt.NDArray[np.int32], weight: Array, count: int) -> Array:
    """Operators of each group, each counted by the weight of its steps and at most once."""
    width = int(operators.max(initial=0)) + 1
    cells, which = np.unique(groups.astype(np.int64) * width + operators, return_inverse=True)
    each = np.minimum(np.bincount(which, weight, len(cells)), 1.0)
    return np.bincount(cells // width, each, count).astype(np.float64)


def _prefix_match(past: Experience, settings: AttentionSettings) -> Array:
    """Discounted agreement of each row's last directions with ours, 0..prefix; unknown ones agree with none."""
    agreement = np.zeros(len(past.gain))
    total = 0.0
    for position in range(min(PREFIX, len(past.history))):
        share = settings.decay**position
        total += share
        if past.history[position] >= 0:
            agreement += share * (past.previous[:, position] == past.history[position])
    return settings.prefix * agreement / total if total else agreement


def _evidence(past: Experience, found: _Posterior, count: int) -> list[tuple[tuple[str, float], ...]]:
    spoken: list[tuple[tuple[str, float], ...]] = []
    strength = np.abs(found.pull)
    most = min(len(strength), 40 * max(count, 1))
    strongest = np.argpartition(-strength, most - 1)[:most] if most else np.zeros(0, np.int64)
    strongest = strongest[np.argsort(-strength[strongest], kind="stable")]
    for code in range(count):
        rows = strongest[(past.direction[strongest] == code) & (strength[strongest] > 0)][:EVIDENCE]
        spoken.append(tuple((past.identity(int(row)), float(found.pull[row])) for row in rows))
    return spoken
