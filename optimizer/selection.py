"""From scores to a choice: mask, confidence gate, upper confidence bound, exploration share.

The scores come from :mod:`artifacts.memory.attention`; everything here is a pure function of its arguments and a
seed, so a choice can be repeated and explained.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from artifacts.memory.attention import AttentionSettings, DirectionScore, StrategyScore
from artifacts.state import State
from optimizer.applicability import barred


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """How scores become a choice.

    Attributes:
        optimism: standard deviations added to a direction's mean before the best is taken.
        explore: share of steps whose direction is drawn at random among those allowed; none unless asked for, because
            logs from which causes can be read cost speed (docs/decisions/0008-no-random-directions-unasked.md).
        least_evidence: effective transitions below which no direction is given.
        least_lead: standard deviations by which the best direction must promise more than the state alone, that is more
            than a model left to itself is expected to gain; below it no direction is given, 0 does not ask.
        strategies: how many strategies a prompt holds at most.
        least_strategy_evidence: effective transitions that a strategy needs to be shown.
    """

    optimism: float = 0.5
    explore: float = 0.0
    least_evidence: float = 1.0
    least_lead: float = 1.5
    strategies: int = 3
    least_strategy_evidence: float = 0.25
    attention: AttentionSettings = field(default_factory=AttentionSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore is a share in 0..1, got {self.explore}")
        thresholds = (self.optimism, self.least_evidence, self.least_lead, self.least_strategy_evidence)
        if min(thresholds) < 0:
            raise ValueError("optimism and the thresholds of evidence and lead must not be negative")
        if self.strategies < 0:
            raise ValueError(f"strategies must not be negative, got {self.strategies}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """A direction, the probability with which it was drawn, and the gate's objection (empty for none)."""

    direction: str = ""
    probability: float | None = None
    explored: bool = False
    gate: str = ""


def pick_direction(
    scores: Sequence[DirectionScore],
    settings: SelectionSettings,
    seed: str,
    taken: Collection[str] = (),
    expected: float = 0.0,
) -> Picked:
    """Choose a direction; none when the gate closes.

    Args:
        scores: one for each direction of the memory.
        settings: optimism, exploration share and gate.
        seed: names the step; equal seeds give equal choices.
        taken: directions that siblings of this step follow already; used again only when nothing else is left.
        expected: log2 gain that the state alone lets expect, whatever the direction.
    """
    allowed = [score for score in scores if not score.masked]
    if not allowed:
        return Picked(gate="every direction is masked" if scores else "the memory holds no direction")
    fresh = [score for score in allowed if score.direction_id not in taken] or allowed
    draw = random.Random(hashlib.sha256(seed.encode()).digest())
    best = max(fresh, key=lambda score: score.mean + settings.optimism * score.spread)
    gate = _objection(best, settings, expected)
    explored = draw.random() < settings.explore
    if gate and not explored:
        return Picked(gate=gate)
    chosen = draw.choice(fresh) if explored else best
    led = 1 - settings.explore if chosen is best and not gate else 0.0
    probability = settings.explore / len(fresh) + led
    return Picked(direction=chosen.direction_id, probability=probability, explored=explored)


def usable_strategies(
    scores: Sequence[StrategyScore], settings: SelectionSettings, state: State
) -> tuple[StrategyScore, ...]:
    """Strategies allowed in ``state`` whose conditions hold and that rest on enough evidence, best first."""
    sure = [score for score in scores if score.holds and score.effective_n >= settings.least_strategy_evidence]
    kept = [score for score in sure if not barred(score.strategy.strategy_id, state)]
    return tuple(kept[: settings.strategies])


def _objection(best: DirectionScore, settings: SelectionSettings, expected: float) -> str:
    """Why the best direction is not trusted; empty when it is."""
    if best.effective_n < settings.least_evidence:
        found, wanted = best.effective_n, settings.least_evidence
        return f"the evidence is worth {found:.1f} transitions, {wanted:g} are needed: no direction"
    lead = best.mean - expected
    if settings.least_lead and lead < settings.least_lead * best.spread:
        return (
            f"no direction stands out: the best promises {lead:+.2f} (sd {best.spread:.2f}) over the state alone, "
            f"{settings.least_lead:g} sd are needed: no direction"
        )
    return ""
