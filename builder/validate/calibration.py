"""Calibration: predicted against observed gain of what was really done at held-out steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from artifacts.statistics import Array, Interval, by_task, ratio_interval, resampled
from builder.validate.decision_points import operator_folds, options_of, states_of
from builder.validate.rankers import Ranker
from builder.validate.replay import FOLDS, training

BINS = 5
GAINED = 0.1
"""Log2 gain (7 %) from which a step counts as one that gained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One held-out step: what was predicted of the option that was taken, and what it gave."""

    task: str
    source: str
    predicted: float
    observed: float
    weight: float


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


def predictions(memory: Memory, ranker: Ranker, level: str, folds: int = FOLDS) -> tuple[Prediction, ...]:
    """Predictions of every measured or failed step by the fold that never saw its operator."""
    tasks = memory.columns.task
    parts = (predicted(memory, tasks.among(held), ranker, level) for held in operator_folds(tasks.names, folds))
    return tuple(item for part in parts for item in part)


def predicted(memory: Memory, tested: Bools, ranker: Ranker, level: str) -> tuple[Prediction, ...]:
    """Predictions of the measured or failed steps in ``tested`` rows, by a memory without them and their operators."""
    options, columns = options_of(memory, level), memory.columns
    rows = np.flatnonzero(tested & ~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0))
    held = memory.same_operators(columns.task.names[code] for code in np.unique(columns.task.values[tested]))
    learnt = ~tested & ~columns.task.among(held)
    if not len(rows) or not learnt.any():
        return ()
    fitted = ranker.fit(training(memory, learnt), level)
    found = []
    for row, state in zip(rows, states_of(memory, rows), strict=True):
        estimate = fitted.estimates(state).get(options.names[options.values[row]])
        if estimate is not None:
            found.append(
                Prediction(
                    task=columns.task.names[columns.task.values[row]],
                    source=columns.source.names[columns.source.values[row]],
                    predicted=estimate,
                    observed=float(memory.gains[row]),
                    weight=float(columns.weight[row]),
                )
            )
    return tuple(found)


def calibration(items: Sequence[Prediction]) -> Calibration:
    """Calibration figures over ``items``, weighted by trust."""
    tasks = [item.task for item in items]
    forecast = np.array([item.predicted for item in items])
    observed = np.array([item.observed for item in items])
    weight = np.array([item.weight for item in items])
    bias = ratio_interval(tasks, list(weight * (observed - forecast)), list(weight))
    within = _sourced(np.array([item.source for item in items]), weight)
    gained = observed > GAINED
    auc, auc_within = _auc(forecast, gained), _auc_within(np.array([item.source for item in items]), forecast, gained)
    forecast, observed = within(forecast), within(observed)
    items = [
        replace(item, predicted=float(x), observed=float(y))
        for item, x, y in zip(items, forecast, observed, strict=True)
    ]
    bins = tuple(_bin(items, rows) for rows in np.array_split(np.argsort(forecast, kind="stable"), BINS) if len(rows))
    sums = [by_task(tasks, list(weight * value)) for value in (np.ones(len(items)), forecast, observed, forecast**2)]
    return Calibration(
        steps=len(items),
        bias=bias,
        slope=resampled(_slope, *sums, by_task(tasks, list(weight * forecast * observed))),
        error=float(np.average([abs(b.predicted - b.observed.value) for b in bins], weights=[b.steps for b in bins])),
        bins=bins,
        auc=auc,
        auc_within=auc_within,
    )


def _sourced(sources: npt.NDArray[np.str_], weight: Array) -> Callable[[Array], Array]:
    """Takes each source's weighted mean from values and puts the mean over all back."""
    which = np.unique(sources, return_inverse=True)[1]
    total = np.bincount(which, weight)

    def within(values: Array) -> Array:
        means = np.bincount(which, weight * values) / total
        moved: Array = values - means[which] + np.average(values, weights=weight)
        return moved

    return within


def _bin(items: Sequence[Prediction], rows: npt.NDArray[np.intp]) -> Bin:
    held = [items[row] for row in rows]
    weights = [item.weight for item in held]
    return Bin(
        predicted=float(np.average([item.predicted for item in held], weights=weights)),
        observed=ratio_interval([item.task for item in held], [item.weight * item.observed for item in held], weights),
        steps=len(held),
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


def _auc_within(sources: npt.NDArray[np.str_], score: Array, positive: Bools) -> float:
    names, counts = np.unique(sources, return_counts=True)
    found = np.array([_auc(score[sources == name], positive[sources == name]) for name in names])
    known = ~np.isnan(found)
    return float(np.average(found[known], weights=counts[known])) if known.any() else float("nan")
