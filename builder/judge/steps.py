"""Step by step: predicted against observed gain of what was really done at held-out steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from builder.judge.bootstrap import Interval, by_task, draw, ratio_interval
from builder.judge.occasions import fold_of, states_of
from builder.judge.rankers import Ranker, options_of
from builder.judge.replay import FOLDS, training

Array = npt.NDArray[np.float64]
BINS = 5
GAINED = 0.1
"""Log2 gain (7 %) from which a step counts as one that gained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One held-out step: what was predicted of the option that was taken, and what it gave.

    ``rank`` is the place of the option among all, 0 the best, ties averaged.
    """

    task: str
    predicted: float
    spread: float
    observed: float
    weight: float
    rank: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far predicted gains can be believed.

    Attributes:
        bias: mean of observed minus predicted, with its interval over tasks.
        slope: of observed on predicted; 1 is perfect, below 1 overconfident.
        error: mean absolute difference of the bins' means (expected calibration error), in log2.
        bins: (mean predicted, mean observed, low, high, steps) of equally filled bins.
        inside: bins whose interval over tasks holds the predicted mean.
        auc: probability that a step that gained was predicted higher than one that did not.
        hit3: share of the steps that gained whose option was among the first three of all.
    """

    steps: int
    bias: Interval
    slope: Interval
    error: float
    bins: tuple[tuple[float, float, float, float, int], ...]
    inside: int
    auc: float
    hit3: Interval


def predictions(
    memory: Memory, ranker: Ranker, level: str, folds: int = FOLDS, seed: int = 0
) -> tuple[Prediction, ...]:
    """Predictions of every measured or failed step by the fold that never saw its task."""
    tasks = memory.columns.task
    task_fold = np.array([fold_of(task, folds, seed) for task in tasks.names])[tasks.values]
    parts = (predicted(memory, task_fold == fold, ranker, level) for fold in range(folds))
    return tuple(item for part in parts for item in part)


def predictions_across(memory: Memory, ranker: Ranker, level: str) -> Iterator[tuple[str, tuple[Prediction, ...]]]:
    """Predictions of the steps of each source, and of each device, by the others; tasks that they share left out."""
    for what, group in (("source", memory.columns.source), ("device", memory.columns.categories["arch"])):
        for code, name in enumerate(group.names):
            yield f"{what} {name}", predicted(memory, group.values == code, ranker, level)


def predicted(memory: Memory, tested: Bools, ranker: Ranker, level: str) -> tuple[Prediction, ...]:
    """Predictions of the measured or failed steps among ``tested`` rows, by a memory without them and their tasks."""
    options, columns = options_of(memory, level), memory.columns
    rows = np.flatnonzero(tested & ~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0))
    learnt = ~tested & ~np.isin(columns.task.values, np.unique(columns.task.values[tested]))
    if not len(rows) or not learnt.any():
        return ()
    fitted = ranker.fit(training(memory, learnt), level)
    found = []
    for row, state in zip(rows, states_of(memory, rows), strict=True):
        estimates = fitted.estimates(state)
        estimate = estimates.get(options.names[options.values[row]])
        if estimate is None:
            continue
        means = np.array([other.mean for other in estimates.values()])
        found.append(
            Prediction(
                task=columns.task.names[columns.task.values[row]],
                predicted=estimate.mean,
                spread=estimate.spread,
                observed=float(memory.gains[row]),
                weight=float(columns.weight[row]),
                rank=float((means > estimate.mean).sum() + ((means == estimate.mean).sum() - 1) / 2),
            )
        )
    return tuple(found)


def calibration(found: Iterable[Prediction], seed: int = 0) -> Calibration:
    """Calibration figures over ``found``, weighted by trust."""
    items = list(found)
    tasks = [item.task for item in items]
    predicted = np.array([item.predicted for item in items])
    observed = np.array([item.observed for item in items])
    weight = np.array([item.weight for item in items])
    bins = _bins(tasks, predicted, observed, weight, seed)
    gained = observed > GAINED
    hits = [float(item.rank < 3) for item, good in zip(items, gained, strict=True) if good]
    return Calibration(
        steps=len(items),
        bias=ratio_interval(tasks, list(weight * (observed - predicted)), list(weight), seed),
        slope=_slope(tasks, predicted, observed, weight, seed),
        error=float(np.average([abs(p - o) for p, o, *_ in bins], weights=[n for *_, n in bins])),
        bins=bins,
        inside=sum(low <= p <= high for p, _, low, high, _ in bins),
        auc=auc(predicted, gained),
        hit3=ratio_interval([t for t, good in zip(tasks, gained, strict=True) if good], hits, [1.0] * len(hits), seed),
    )


def auc(score: Array, positive: npt.NDArray[np.bool_]) -> float:
    """Probability that a positive scores above a negative, ties one half; NaN when a side is empty."""
    if not positive.any() or positive.all():
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    above = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(above / (positive.sum() * (~positive).sum()))


def _bins(
    tasks: list[str], predicted: Array, observed: Array, weight: Array, seed: int
) -> tuple[tuple[float, float, float, float, int], ...]:
    order = np.argsort(predicted, kind="stable")
    found = []
    for part in np.array_split(order, BINS):
        if not len(part):
            continue
        names = [tasks[i] for i in part]
        seen = ratio_interval(names, list(weight[part] * observed[part]), list(weight[part]), seed)
        mean = float(np.average(predicted[part], weights=weight[part]))
        found.append((mean, seen.value, seen.low, seen.high, len(part)))
    return tuple(found)


def _slope(tasks: list[str], predicted: Array, observed: Array, weight: Array, seed: int) -> Interval:
    sums = [
        by_task(tasks, list(weight * value)) for value in (1.0, predicted, observed, predicted**2, predicted * observed)
    ]
    whole = _slope_of(*(part.sum() for part in sums))
    chosen = draw(len(sums[0]), seed)
    draws = [_slope_of(*values) for values in zip(*(part[chosen].sum(axis=1) for part in sums), strict=True)]
    low, high = np.quantile([value for value in draws if np.isfinite(value)] or [np.nan], [0.025, 0.975])
    return Interval(value=whole, low=float(low), high=float(high), tasks=len(sums[0]))


def _slope_of(n: float, p: float, o: float, pp: float, po: float) -> float:
    spread = pp - p * p / n if n else 0.0
    return float((po - p * o / n) / spread) if spread > 1e-12 else float("nan")
