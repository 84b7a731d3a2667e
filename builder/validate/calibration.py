"""Calibration: predicted against observed gain of what was really done at held-out steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from artifacts.statistics import Array, Interval, by_task, ratio_interval, resampled
from builder.validate.decision_points import operator_folds, options_of, states_of
from builder.validate.rankers import memory_score
from builder.validate.replay import FOLDS, training

Names = npt.NDArray[np.str_]
BINS = 5
GAINED = 0.1
"""Log2 gain (7 %) from which a step counts as one that gained."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Held-out steps: what was predicted of the option that was taken, and what it gave; arrays of shape [steps]."""

    tasks: Names
    sources: Names
    predicted: Array
    observed: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """A fifth of the steps by what was predicted of them: mean prediction and what was observed."""

    predicted: float
    observed: Interval
    steps: int

    @property
    def holds(self) -> bool:
        """Whether the interval of what was observed holds what was predicted."""
        return self.observed.low <= self.predicted <= self.observed.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far predicted gains can be believed, within sources: logs differ more in how often steps gain than states do.

    Slope, error and bins are of predictions and observations of which each has its source's mean taken away and the
    mean over all put back; only the bias is over all.

    Attributes:
        bias: mean of observed minus predicted.
        slope: of observed on predicted; 1 is perfect, below 1 overconfident.
        error: mean absolute difference of the bins' means (expected calibration error), in log2.
        auc_within: probability that a step that gained was predicted higher than one of its source that did not, on
            the average over steps; NaN where all or none did. ``auc`` is the same over all, which tells sources apart.
    """

    steps: int
    bias: Interval
    slope: Interval
    error: float
    bins: tuple[Bin, ...]
    auc: float
    auc_within: float


def predictions(memory: Memory, level: str) -> Predictions:
    """Predictions of every measured or failed step by the fold that never saw its operator."""
    tasks = memory.columns.task
    parts = [_predicted(memory, tasks.among(held), level) for held in operator_folds(tasks.names, FOLDS)]
    rows = np.array([row for part in parts for row in part], np.int64)
    return Predictions(
        tasks=np.array(tasks.names, str)[tasks.values[rows]],
        sources=np.array(memory.columns.source.names, str)[memory.columns.source.values[rows]],
        predicted=np.array([estimate for part in parts for estimate in part.values()], np.float64),
        observed=memory.gains[rows].astype(np.float64),
        weight=memory.columns.weight[rows].astype(np.float64),
    )


def _predicted(memory: Memory, tested: Bools, level: str) -> dict[int, float]:
    """Predictions of the measured or failed steps in ``tested`` rows, by a memory without them and their operators."""
    options, columns = options_of(memory, level), memory.columns
    rows = np.flatnonzero(tested & ~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0))
    held = memory.same_operators(columns.task.names[code] for code in np.unique(columns.task.values[tested]))
    learnt = ~tested & ~columns.task.among(held)
    if not len(rows) or not learnt.any():
        return {}
    estimates = memory_score(training(memory, learnt), level)
    found = (
        estimates(state).get(options.names[options.values[row]])
        for row, state in zip(rows, states_of(memory, rows), strict=True)
    )
    return {int(row): estimate for row, estimate in zip(rows, found, strict=True) if estimate is not None}


def calibration(items: Predictions) -> Calibration:
    """Calibration figures over ``items``, weighted by trust."""
    weight, within = items.weight, _sourced(items.sources, items.weight)
    gained = items.observed > GAINED
    forecast, observed = within(items.predicted), within(items.observed)
    lots = np.array_split(np.argsort(forecast, kind="stable"), BINS)
    bins = tuple(_bin(items.tasks[rows], forecast[rows], observed[rows], weight[rows]) for rows in lots if len(rows))
    moments = (np.ones(len(items)), forecast, observed, forecast**2, forecast * observed)
    return Calibration(
        steps=len(items),
        bias=ratio_interval(items.tasks, weight * (items.observed - items.predicted), weight),
        slope=resampled(_slope, *(by_task(items.tasks, weight * value) for value in moments)),
        error=float(np.average([abs(b.predicted - b.observed.value) for b in bins], weights=[b.steps for b in bins])),
        bins=bins,
        auc=_auc(items.predicted, gained),
        auc_within=_auc_within(items.sources, items.predicted, gained),
    )


def _sourced(sources: Names, weight: Array) -> Callable[[Array], Array]:
    """Takes each source's weighted mean from values and puts the mean over all back."""
    which = np.unique(sources, return_inverse=True)[1]
    total = np.bincount(which, weight)

    def within(values: Array) -> Array:
        means = np.bincount(which, weight * values) / total
        moved: Array = values - means[which] + np.average(values, weights=weight)
        return moved

    return within


def _bin(tasks: Names, forecast: Array, observed: Array, weight: Array) -> Bin:
    return Bin(
        predicted=float(np.average(forecast, weights=weight)),
        observed=ratio_interval(tasks, weight * observed, weight),
        steps=len(weight),
    )


def _slope(count: Array, x: Array, y: Array, xx: Array, xy: Array) -> Array:
    """Weighted least squares from sums; NaN where the predictions do not differ."""
    spread = xx - x * x / count
    return np.where(spread > 1e-12, (xy - x * y / count) / spread, np.nan)


def _auc(score: Array, positive: Bools) -> float:
    if not positive.any() or positive.all():
        return float("nan")
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score))


def _auc_within(sources: Names, score: Array, positive: Bools) -> float:
    names, counts = np.unique(sources, return_counts=True)
    found = np.array([_auc(score[sources == name], positive[sources == name]) for name in names])
    known = ~np.isnan(found)
    return float(np.average(found[known], weights=counts[known])) if known.any() else float("nan")
