"""What a greedy choice by a ranking would have gained, from logs that say how likely their own choices were.

Replay on siblings needs several options from one parent. Where a log carries the probability of each choice, steps with
one child count too: inverse propensity weights what was chosen as the ranking would have chosen it, and the doubly
robust estimate adds the predicted gain of the choice, which lowers the variance and keeps the estimate unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from artifacts.memory.htg import Memory
from builder.judge.bootstrap import Interval, ratio_interval
from builder.judge.occasions import fold_of, states_of
from builder.judge.rankers import Ranker, options_of

LEAST_PROBABILITY = 0.01
"""Rarer choices are weighted as if they had this probability: one lucky step must not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """Mean log2 gain a step over ``steps`` steps with known choice probability.

    Attributes:
        logged: what the logged choices gained.
        inverse: self-normalised inverse propensity estimate for the ranking's first choice.
        robust: doubly robust estimate for the same.
    """

    steps: int
    logged: Interval
    inverse: Interval
    robust: Interval


@dataclass(frozen=True, slots=True)
class _Step:
    task: str
    gain: float
    ratio: float
    predicted_choice: float
    predicted_taken: float


def off_policy(memory: Memory, ranker: Ranker, level: str, folds: int = 5, seed: int = 0) -> OffPolicy | None:
    """Estimates with the tasks of each fold held out; None when no step carries its choice probability."""
    steps = [step for fold in range(folds) for step in _fold(memory, ranker, level, folds, fold, seed)]
    if not steps:
        return None
    tasks = [step.task for step in steps]
    ones = [1.0] * len(steps)
    robust = [step.predicted_choice + step.ratio * (step.gain - step.predicted_taken) for step in steps]
    ratios = [step.ratio for step in steps]
    return OffPolicy(
        steps=len(steps),
        logged=ratio_interval(tasks, [step.gain for step in steps], ones, seed),
        inverse=ratio_interval(tasks, [step.ratio * step.gain for step in steps], ratios, seed),
        robust=ratio_interval(tasks, robust, ones, seed),
    )


def _fold(memory: Memory, ranker: Ranker, level: str, folds: int, fold: int, seed: int) -> list[_Step]:
    columns, options = memory.columns, options_of(memory, level)
    chance = np.asarray(memory.table["choice_probability"].to_numpy(), np.float64)
    known = ~np.isnan(chance) & ~np.isnan(memory.gains) & (options.values >= 0)
    held = [task for task in columns.task.names if fold_of(task, folds, seed) == fold]
    codes = [columns.task.code(task) for task in held]
    rows = np.flatnonzero(known & np.isin(columns.task.values, codes))
    if not len(rows):
        return []
    fitted = ranker.fit(memory.filter(exclude_tasks=held), level)
    found = []
    for row, state in zip(rows, states_of(memory, rows), strict=True):
        means = {name: estimate.mean for name, estimate in fitted.estimates(state).items()}
        taken = options.names[options.values[row]]
        if taken not in means:
            continue
        first = [name for name, mean in means.items() if mean == max(means.values())]
        found.append(
            _Step(
                task=columns.task.names[columns.task.values[row]],
                gain=float(memory.gains[row]),
                ratio=(taken in first) / len(first) / max(float(chance[row]), LEAST_PROBABILITY),
                predicted_choice=max(means.values()),
                predicted_taken=means[taken],
            )
        )
    return found
