"""Everything that replay can say of one memory: the whole report, and the manifest's figures."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.memory.htg import Memory
from artifacts.memory.manifest import RankingQuality
from artifacts.statistics import Interval
from builder.validate.calibration import Calibration, calibration, predictions
from builder.validate.decision_points import LEVELS, decision_points
from builder.validate.off_policy import OffPolicy, off_policy
from builder.validate.permutations import chance, run_permuted
from builder.validate.rankers import HTAM, NO_DIRECTION, PAPER, RANKERS
from builder.validate.replay import Figures, Split, figures, level_splits, run

GOAL = 0.10
"""Share of a baseline's regret that the memory's ranking has to save."""
POWER = 2.8
"""Standard errors of an effect that a two-sided 5 % test finds with 80 % probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """Replay of one level.

    Attributes:
        figures: the shipped score first, then the paper's, the baselines, and the memory's score over permuted labels.
        chance: probability that permuted labels rank as well; None without decision points.
        off_policy: from steps that carry the probability of their direction; None for strategies and without such.
    """

    level: str
    figures: tuple[Figures, ...] = ()
    chance: float | None = None
    calibration: Calibration | None = None
    off_policy: OffPolicy | None = None

    @property
    def beaten(self) -> tuple[str, ...]:
        """Baselines of which at least :data:`GOAL` of the regret is saved with an interval that excludes zero."""
        others = (item for item in self.figures[1:] if item.ranker != PAPER)
        return tuple(item.ranker for item in others if item.margin.value >= GOAL and item.margin.low > 0)

    @property
    def detectable(self) -> float | None:
        """Least margin over the no-direction baseline that these logs could have shown."""
        found = (item.margin for item in self.figures if item.ranker == NO_DIRECTION and item.margin.known)
        return next((POWER * (margin.high - margin.low) / 3.92 for margin in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Replay of one memory, or of one memory on logs that it does not hold (``test``)."""

    reference: str
    test: str
    levels: tuple[LevelReport, ...]


def replay(memory: Memory) -> ReplayReport:
    """Leave-operators-out replay of ``memory`` at both levels."""
    levels = tuple(_level(memory, level, splits) for level, splits in level_splits(memory).items())
    return ReplayReport(reference=memory.reference, test="held-out tasks", levels=levels)


def replay_on(memory: Memory, test: Memory) -> ReplayReport:
    """Replay of ``memory`` at the decision points of ``test``, whose operators leave the memory first."""
    levels = []
    for level in LEVELS:
        points = decision_points(test, level)
        train = memory.filter(exclude_tasks=memory.same_operators({point.task for point in points}))
        found, likely = _ranked((Split(train=train, test=points),) if points else (), level)
        levels.append(LevelReport(level=level, figures=found, chance=likely))
    return ReplayReport(reference=memory.reference, test=test.reference, levels=tuple(levels))


def _level(memory: Memory, level: str, splits: Sequence[Split]) -> LevelReport:
    found, likely = _ranked(splits, level)
    if not found:
        return LevelReport(level=level)
    steps = predictions(memory, level)
    carried = level == "direction" and memory.table["choice_probability"].null_count < len(memory)
    return LevelReport(
        level=level,
        figures=found,
        chance=likely,
        calibration=calibration(steps) if len(steps) else None,
        off_policy=off_policy(memory) if carried else None,
    )


def _ranked(splits: Sequence[Split], level: str) -> tuple[tuple[Figures, ...], float | None]:
    """Figures of all rankers, and the probability that permuted labels do as well."""
    if not splits:
        return (), None
    records, controls = run(splits, RANKERS, level), run_permuted(splits, level)
    found = figures([*records, *(item for control in controls for item in control)], HTAM)
    return found, chance([item for item in records if item.ranker == HTAM], controls)


MOST = 20_000
"""Transitions that replay looks at; each choice is weighed against all of them, so its cost is their square."""


def quality(memory: Memory) -> tuple[RankingQuality, ...]:
    """Figures of direction and strategy ranking on held-out tasks; none where the logs hold no decision point.

    A memory of more than :data:`MOST` transitions is validated on a part of its tasks, chosen by their names' hashes.
    """
    memory = sampled(memory)
    found = []
    for level, splits in level_splits(memory).items():
        records = run(splits, {name: RANKERS[name] for name in (HTAM, NO_DIRECTION)}, level)
        if records:
            mine = [item for item in records if item.ranker == HTAM]
            ours, baseline = figures(records, HTAM)
            found.append(
                RankingQuality(
                    level=level,
                    decision_points=ours.decision_points,
                    regret=round(ours.regret.value, 6),
                    regret_no_direction=round(baseline.regret.value, 6),
                    ndcg=_known(ours.ndcg.value),
                    hit3=_known(ours.hit3.value),
                    pairwise=_known(ours.pairwise.value),
                    margin=_known(baseline.margin.value),
                    margin_interval=_bounds(baseline.margin),
                    chance=round(chance(mine, run_permuted(splits, level)), 4),
                )
            )
    return tuple(found)


def _known(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _bounds(found: Interval) -> tuple[float, float] | None:
    return (round(found.low, 6), round(found.high, 6)) if found.known else None


def sampled(memory: Memory) -> Memory:
    """``memory``, or that part of its tasks whose transitions are about :data:`MOST`."""
    if len(memory) <= MOST:
        return memory
    tasks = memory.columns.task
    rows = np.bincount(tasks.values, minlength=len(tasks.names))
    order = sorted(range(len(tasks.names)), key=lambda code: hashlib.sha256(tasks.names[code].encode()).digest())
    whole = 1 + int(np.searchsorted(np.cumsum(rows[order]), MOST))
    return memory.kept(np.isin(tasks.values, order[:whole]))
