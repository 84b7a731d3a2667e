"""The figures every report gives: geometric means with and without failures, coverage, fast_p, paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from artifacts.statistics import mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Speedups of a set of tasks against one baseline.

    Attributes:
        tasks: number of tasks, ``correct`` those with a verified candidate that has this baseline.
        over_correct: geometric mean over the correct ones; None when there is none.
        over_all: geometric mean over all tasks, a task without a verified candidate counting 1.
        low, high: 95 % bootstrap interval of ``over_all`` over tasks; None below three tasks.
        faster: tasks faster than the baseline.
    """

    tasks: int
    correct: int
    over_correct: float | None
    over_all: float | None
    low: float | None
    high: float | None
    faster: int

    @property
    def coverage(self) -> float:
        """Share of tasks with a verified candidate."""
        return self.correct / self.tasks if self.tasks else 0.0


def summarise(speedups: Sequence[float | None]) -> Summary:
    """Summarise one speedup a task; None stands for a task without a verified candidate."""
    correct = [value for value in speedups if value is not None]
    filled = [1.0 if value is None else value for value in speedups]
    interval = mean_interval([math.log(value) for value in filled])
    return Summary(
        tasks=len(speedups),
        correct=len(correct),
        over_correct=geometric_mean(correct) if correct else None,
        over_all=geometric_mean(filled) if filled else None,
        low=math.exp(interval.low) if interval.known else None,
        high=math.exp(interval.high) if interval.known else None,
        faster=sum(value > 1.0 for value in correct),
    )


def fast_p(speedups: Sequence[float | None], threshold: float) -> float:
    """Share of all tasks that are correct and more than ``threshold`` times as fast as the baseline."""
    if not speedups:
        return 0.0
    return sum(value is not None and value > threshold for value in speedups) / len(speedups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two arms on the same tasks, in ratios of speedups (first over second).

    ``ratio`` is the geometric mean with its 95 % bootstrap interval over tasks; a tie lies within
    ``margin`` of 1; ``losses`` lists the tasks on which the first arm is the slower one.
    """

    tasks: int
    ratio: float
    low: float | None
    high: float | None
    wins: int
    ties: int
    losses: tuple[str, ...]
    margin: float

    @property
    def decided(self) -> bool:
        """True when the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def pair(first: Mapping[str, float | None], second: Mapping[str, float | None], margin: float = 0.02) -> Pairing | None:
    """Compare two arms over the tasks both ran; failures count 1; None when they share no task."""
    shared = sorted(set(first) & set(second))
    if not shared:
        return None
    logs = {task: math.log(first[task] or 1.0) - math.log(second[task] or 1.0) for task in shared}
    edge = math.log1p(margin)
    interval = mean_interval(list(logs.values()))
    return Pairing(
        tasks=len(shared),
        ratio=math.exp(sum(logs.values()) / len(logs)),
        low=math.exp(interval.low) if interval.known else None,
        high=math.exp(interval.high) if interval.known else None,
        wins=sum(value > edge for value in logs.values()),
        ties=sum(abs(value) <= edge for value in logs.values()),
        losses=tuple(task for task, value in logs.items() if value < -edge),
        margin=margin,
    )
