"""What a greedy choice by a ranking would have gained, from steps whose direction was drawn at random.

Replay on siblings needs several options from one parent. Where a log carries the probability of each choice, steps with
one child count too: inverse propensity weights what was chosen as the ranking would have chosen it, and the doubly
robust estimate adds the predicted gain of the choice, which lowers the variance. Both need that the ranking's choice
could have been drawn: a direction that was chosen with certainty says nothing of the others. What is logged is the
probability of a direction, so strategies have no such estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from artifacts.memory.htg import Memory
from artifacts.statistics import LEAST_TASKS, Array, Interval, ratio_interval
from builder.validate.decision_points import operator_folds, options_of, states_of
from builder.validate.rankers import memory_score
from builder.validate.replay import FOLDS

LEAST_PROBABILITY = 0.01
"""Rarer choices are weighted as if they had this probability: one lucky step must not decide."""
CERTAIN = 0.999
"""Probability from which a choice counts as certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Mean log2 gain a step: of the choices that were drawn, and of the ranking's first choice at the same steps."""

    logged: Interval
    inverse: Interval
    robust: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """Whether logged choices support off-policy estimates, and the estimates when they do.

    Attributes:
        logged: steps that carry the probability of their direction.
        drawn: those of them whose direction was drawn at random.
        estimates: None where the steps that the ranking agrees with are of fewer than three tasks.
    """

    logged: int
    drawn: int
    estimates: Estimates | None

    @property
    def line(self) -> str:
        """All of it in one sentence."""
        if self.estimates is None:
            return (
                f"no off-policy estimate: of {self.logged} steps with a logged probability {self.drawn} were drawn "
                "at random, too few that the memory would have chosen"
            )
        chosen, ours = self.estimates.logged, self.estimates.robust
        return (
            f"over {self.drawn} steps drawn at random: drawn {chosen.value:+.3f}, the memory's first {ours.value:+.3f} "
            f"[{ours.low:+.3f}, {ours.high:+.3f}] log2 gain a step (doubly robust)"
        )


class _Step(NamedTuple):
    task: str
    gain: float
    ratio: float
    predicted_choice: float
    predicted_taken: float


def off_policy(memory: Memory) -> OffPolicy:
    """Estimates for the directions that the memory's score chooses, with the operators of each fold held out."""
    chance = np.asarray(memory.table["choice_probability"].to_numpy(), np.float64)
    directions = options_of(memory, "direction")
    known = ~np.isnan(chance) & ~np.isnan(memory.gains) & (directions.values >= 0)
    drawn = known & (chance < CERTAIN)
    tasks = memory.columns.task
    folds = operator_folds({tasks.names[code] for code in np.unique(tasks.values[drawn])}, FOLDS)
    steps = [step for held in folds for step in _fold(memory, np.flatnonzero(drawn & tasks.among(held)), chance)]
    agreed = {step.task for step in steps if step.ratio > 0}
    return OffPolicy(
        logged=int(known.sum()),
        drawn=int(drawn.sum()),
        estimates=_estimates(steps) if len(agreed) >= LEAST_TASKS else None,
    )


def _estimates(steps: list[_Step]) -> Estimates:
    names, ones = [step.task for step in steps], [1.0] * len(steps)
    robust = [step.predicted_choice + step.ratio * (step.gain - step.predicted_taken) for step in steps]
    ratios = [step.ratio for step in steps]
    return Estimates(
        logged=ratio_interval(names, [step.gain for step in steps], ones),
        inverse=ratio_interval(names, [step.ratio * step.gain for step in steps], ratios),
        robust=ratio_interval(names, robust, ones),
    )


def _fold(memory: Memory, rows: npt.NDArray[np.intp], chance: Array) -> list[_Step]:
    columns, directions = memory.columns, options_of(memory, "direction")
    held = memory.same_operators(columns.task.names[code] for code in np.unique(columns.task.values[rows]))
    estimates = memory_score(memory.filter(exclude_tasks=held), "direction")
    found = []
    for row, state in zip(rows, states_of(memory, rows), strict=True):
        means = estimates(state)
        taken = directions.names[directions.values[row]]
        if taken not in means:
            continue
        best = max(means.values())
        first = [name for name, mean in means.items() if mean == best]
        found.append(
            _Step(
                task=columns.task.names[columns.task.values[row]],
                gain=float(memory.gains[row]),
                ratio=(taken in first) / len(first) / max(float(chance[row]), LEAST_PROBABILITY),
                predicted_choice=best,
                predicted_taken=means[taken],
            )
        )
    return found
