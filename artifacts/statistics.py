"""Intervals over tasks, the only ones of the project: steps of one task are not independent.

Ratios are resampled over tasks (:func:`resampled`). Means of many groups at once, of few tasks each, have t intervals
(:func:`nested_means`): over few tasks a bootstrap's are too narrow, see docs/decisions/0031-intervals-over-tasks.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Names = Sequence[str] | npt.NDArray[np.str_]
DRAWS = 2000
LEAST_TASKS = 3
"""Tasks below which resampling says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its 95 % bootstrap percentile interval over ``tasks`` tasks; NaN bounds below three tasks."""

    value: float
    low: float
    high: float
    tasks: int

    @property
    def known(self) -> bool:
        """Whether the interval has bounds."""
        return not math.isnan(self.low)


def resampled(statistic: Callable[..., Array], *sums: Array, seed: int = 0) -> Interval:
    """``statistic`` of totals over tasks, and over tasks drawn with replacement.

    Args:
        statistic: takes one array a sum and gives an array of the same shape, NaN where it is not defined.
        sums: of shape [tasks], what each task contributes to a total.
    """
    tasks = len(sums[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(*(np.atleast_1d(part.sum()) for part in sums))[0])
        if tasks < LEAST_TASKS or not math.isfinite(value):
            return Interval(value=value, low=math.nan, high=math.nan, tasks=tasks)
        drawn = np.random.default_rng(seed).integers(0, tasks, (DRAWS, tasks))
        values = statistic(*(part[drawn].sum(axis=1) for part in sums))
    low, high = np.quantile(values[np.isfinite(values)], (0.025, 0.975))
    return Interval(value=value, low=float(low), high=float(high), tasks=tasks)


def mean_interval(values: Sequence[float] | Array, seed: int = 0) -> Interval:
    """Mean of one value a task."""
    return resampled(np.divide, np.asarray(values, np.float64), np.ones(len(values)), seed=seed)


def ratio_interval(
    tasks: Names, numerators: Sequence[float] | Array, denominators: Sequence[float] | Array, seed: int = 0
) -> Interval:
    """Sum of numerators over sum of denominators; an entry a row, ``tasks`` names the task of each."""
    return resampled(np.divide, by_task(tasks, numerators), by_task(tasks, denominators), seed=seed)


def by_task(tasks: Names, values: Sequence[float] | Array) -> Array:
    """Sums of ``values`` over each task, tasks in sorted order."""
    _, codes = np.unique(np.array(tasks, dtype=object).astype(str), return_inverse=True)
    sums: Array = np.bincount(codes, weights=np.asarray(values, np.float64)).astype(np.float64)
    return sums


@dataclass(frozen=True, slots=True)
class NestedMeans:
    """Means of groups: arrays of shape [groups], NaN ``mean`` and ``variance`` where nothing can be said.

    Attributes:
        half: half the width of the 95 % interval; NaN below :data:`LEAST_TASKS` tasks.
        tasks: how many of positive weight there are.
    """

    mean: Array
    variance: Array
    half: Array
    tasks: Ints


def nested_means(
    values: Array, weights: Array, groups: Ints, count: int, *, plans: Ints, tasks: Ints, sources: Ints
) -> NestedMeans:
    """Mean of each group 0..count-1 over tasks, of a task over plans, of a plan over steps; arrays of shape [steps].

    However many steps a plan or a task has, it counts once, with the mean trust of its steps. The interval is that of
    t for task means; where three sources or more took part and differ by more than tasks do, that for source means.

    Args:
        weights: trust, 0..1; steps of none are left out.
        groups: negative for steps of no group.
        plans, tasks, sources: codes from 0.
    """
    kept = (groups >= 0) & (weights > 0)
    level = _Level(values[kept], weights[kept].astype(np.float64), groups[kept], tasks[kept], sources[kept])
    level = level.rolled(level.groups, level.sources, level.tasks, plans[kept])
    level = level.rolled(level.groups, level.sources, level.tasks)
    total = np.bincount(level.groups, level.weights, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(level.groups, level.weights * level.values, count) / total
        pull = level.weights * (level.values - mean[level.groups]) / total[level.groups]
        share = level.weights / total[level.groups]
        variance, half, found = _spread(level.groups, level.tasks, pull, share, count)
        apart, wider, several = _spread(level.groups, level.sources, pull, share, count)
    half = np.where((several >= LEAST_TASKS) & (apart > variance), np.fmax(half, wider), half)
    return NestedMeans(mean, variance, np.where(found >= LEAST_TASKS, half, np.nan), found)


@dataclass(frozen=True, slots=True)
class _Level:
    values: Array
    weights: Array
    groups: Ints
    tasks: Ints
    sources: Ints

    def rolled(self, *keys: Ints) -> _Level:
        """One row for each combination of ``keys``: the weighted mean of its rows, and the mean of their weights."""
        first, code = combined(keys)
        weight = np.bincount(code, self.weights)
        value = np.bincount(code, self.weights * self.values) / weight
        return _Level(value, weight / np.bincount(code), self.groups[first], self.tasks[first], self.sources[first])


def combined(keys: Sequence[Ints]) -> tuple[npt.NDArray[np.intp], Ints]:
    """First row of each combination of keys, and the combination of each row."""
    code = np.zeros(len(keys[0]), np.int64)
    first = np.zeros(0, np.intp)
    for key in keys:
        # Compacted each time, so that no product overflows.
        _, first, code = np.unique(code * (int(key.max(initial=0)) + 1) + key, return_index=True, return_inverse=True)
    return first, code


def _spread(groups: Ints, clusters: Ints, pull: Array, share: Array, count: int) -> tuple[Array, Array, Ints]:
    """Variance of each group's mean over independent clusters, half its interval, and the number of clusters.

    Residuals are scaled up by their cluster's pull on the mean (HC2), which for equal weights is the variance of a mean
    as everybody knows it; t has as many degrees of freedom as clusters of equal weight would leave.
    """
    from scipy.special import stdtrit

    first, code = combined((groups, clusters))
    owner, own = groups[first], np.bincount(code, share)
    variance = np.bincount(owner, np.bincount(code, pull) ** 2 / (1.0 - own), count)
    freedom = np.maximum(1.0 / np.bincount(owner, own**2, count) - 1.0, 1.0)
    found = np.bincount(owner, minlength=count)
    half: Array = -stdtrit(freedom, 0.025) * np.sqrt(variance)
    return variance.astype(np.float64), half, found.astype(np.int64)
