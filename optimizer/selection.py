"""From scores to a choice: mask, confidence gate, upper confidence bound, exploration share.

The scores come from :mod:`artifacts.memory.attention`; everything here is a pure function of its arguments and a
seed, so a choice can be repeated and explained.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from artifacts.features.techniques import shown_by
from artifacts.memory.attention import AttentionSettings, DirectionScore, StrategyScore
from artifacts.memory.edges import moves_from
from artifacts.memory.records import Edge
from artifacts.trajectory import State
from optimizer.applicability import barred


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSettings:
    """How scores become a choice.

    Attributes:
        optimism: standard deviations added to a direction's mean before the best is taken.
        explore: share of steps whose direction is drawn at random among those allowed; none unless asked for, because
            logs that support off-policy estimates cost speed (docs/decisions/0008-no-random-directions-unasked.md).
        least_evidence: operators (see ``effective_n``) that a direction needs to be given.
        least_margin: standard deviations by which a direction must promise more than the no-direction baseline, that
            is more than a model left to itself is expected to gain; 0 does not ask.
        strategies: how many strategies a prompt holds at most; ``moves``: how many moves.
        least_strategy_evidence: operators that a strategy needs to be shown.
    """

    optimism: float = 0.5
    explore: float = 0.0
    least_evidence: float = 3.0
    least_margin: float = 1.5
    strategies: int = 3
    moves: int = 3
    least_strategy_evidence: float = 3.0
    attention: AttentionSettings = field(default_factory=AttentionSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1:
            raise ValueError(f"explore is a share in 0..1, got {self.explore}")
        thresholds = (self.optimism, self.least_evidence, self.least_margin, self.least_strategy_evidence)
        if min(thresholds) < 0:
            raise ValueError("optimism and the thresholds of evidence and margin must not be negative")
        if min(self.strategies, self.moves) < 0:
            raise ValueError(f"strategies and moves must not be negative, got {self.strategies} and {self.moves}")


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
    """Choose a direction: filter what has evidence and a margin, then take the best; none when nothing passes.

    Args:
        scores: one for each direction of the memory.
        settings: optimism, exploration share and gate.
        seed: names the step; equal seeds give equal choices.
        taken: directions that siblings of this step follow already; used again only when nothing else is left.
        expected: log2 gain by the no-direction baseline.
    """
    allowed = [score for score in scores if not score.masked]
    if not allowed:
        return Picked(gate="every direction is masked" if scores else "the memory holds no direction")
    fresh = [score for score in allowed if score.direction_id not in taken] or allowed
    draw = random.Random(hashlib.sha256(seed.encode()).digest())
    proven = [score for score in fresh if score.effective_n >= settings.least_evidence]
    least = settings.least_margin
    ahead = [score for score in proven if not least or score.mean - expected >= least * score.spread]
    best = max(ahead, key=lambda score: _promise(score, settings), default=None)
    explored = draw.random() < settings.explore
    if best is None and not explored:
        return Picked(gate=_objection(fresh, proven, settings, expected))
    chosen = draw.choice(fresh) if explored or best is None else best
    greedy = 1 - settings.explore if chosen is best else 0.0
    probability = settings.explore / len(fresh) + greedy
    return Picked(direction=chosen.direction_id, probability=probability, explored=explored)


def usable_strategies(
    scores: Sequence[StrategyScore], settings: SelectionSettings, state: State
) -> tuple[StrategyScore, ...]:
    """Strategies allowed in ``state`` whose conditions hold and that rest on enough evidence, best first."""
    sure = [score for score in scores if score.holds and score.effective_n >= settings.least_strategy_evidence]
    allowed = [score for score in sure if not barred(score.strategy.strategy_id, state)]
    return tuple(allowed[: settings.strategies])


def usable_moves(edges: Sequence[Edge], settings: SelectionSettings, state: State) -> tuple[Edge, ...]:
    """Moves that apply to the kernel in ``state`` and surely gained from its rung, those on this device first.

    None before there is a kernel; a move is sure when the whole interval of its effect over operators lies above 0.
    """
    if state.runtime_us is None:
        return ()
    found = moves_from(edges, shown_by(state.features), state)
    sure = [edge for edge in found if edge.effect.sign > 0 and edge.move.startswith("+")]
    return tuple(sorted(sure, key=lambda edge: edge.arch != state.arch)[: settings.moves])


def _promise(score: DirectionScore, settings: SelectionSettings) -> float:
    return score.mean + settings.optimism * score.spread


def _objection(
    fresh: Sequence[DirectionScore], proven: Sequence[DirectionScore], settings: SelectionSettings, expected: float
) -> str:
    """Why no direction is given, by the one that came nearest."""
    if not proven:
        most, wanted = max(score.effective_n for score in fresh), settings.least_evidence
        return f"the evidence is worth {most:.1f} operators, {wanted:g} are needed: no direction"
    best = max(proven, key=lambda score: _promise(score, settings))
    return (
        f"no direction stands out: the best promises {best.mean - expected:+.2f} (sd {best.spread:.2f}) over the "
        f"no-direction baseline, {settings.least_margin:g} sd are needed: no direction"
    )
