"""What the state predicts of the next step's gain: what directions are credited against.

A ridge regression on named terms, corrected by what such predictions came to on other tasks, so that a prediction can
be read, stored as JSON and computed for one state in microseconds. It is refitted whenever a filter takes experience
away, because a model that has seen the excluded task would leak it. The correction is monotone: a straight line meets
outcomes that have a floor, and is learnt from predictions for tasks that the regression had not seen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import CATEGORIES, NUMBERS, Bools, Columns, Floats
from artifacts.task import operator_name
from artifacts.trajectory import State

SCALES = {
    "fraction_of_bound": (0.3, 0.3),
    "log2_speedup": (0.0, 2.0),
    "log2_progress": (1.0, 2.0),
    "log2_runtime": (9.0, 4.0),
    "step": (3.0, 5.0),
    "stagnation": (1.0, 3.0),
}
"""Centre and scale of each number, constants so that two memories measure alike."""
CLIP = 3.0
FLOOR, CAP = -1.0, 4.0
"""Of gains: a failed or slower step costs the step, not the speed, because a search keeps its best, and single enormous
wins over naive kernels must not drown the rest."""
SIBLINGS = 1.0
"""How many siblings the state's expectation is worth."""
ALONE = 0.2
"""Weight of a step without siblings against one with many."""
RIDGE = 30.0
CHUNK = 50_000
FOLDS = 8
Matrix = npt.NDArray[np.float64]
LEAST = 25.0
"""Weight of the steps that a bin needs before its mean is believed; about 0.15 log2 either way."""
BINS = 40


@dataclass(frozen=True, slots=True)
class Correction:
    """Gains that were observed at ``predicted`` ones, both ascending; straight between them and level beyond.

    Without any point nothing is corrected.
    """

    predicted: tuple[float, ...] = ()
    observed: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.predicted) != len(self.observed):
            raise ValueError(f"{len(self.predicted)} predictions cannot have {len(self.observed)} observed means")

    def of(self, predicted: Floats) -> Floats:
        """Corrected predictions."""
        if not self.predicted:
            return predicted
        return np.interp(predicted, self.predicted, self.observed).astype(np.float32)


def learned_correction(predicted: Floats, observed: Floats, weight: Floats) -> Correction:
    """The isotonic map from ``predicted`` to ``observed``; rows with NaN in either are left out.

    Steps are taken in bins of equal weight; fewer steps than two bins need correct nothing.
    """
    known = ~np.isnan(observed) & ~np.isnan(predicted) & (weight > 0)
    order = np.argsort(predicted[known], kind="stable")
    forecast, seen = predicted[known][order].astype(np.float64), observed[known][order].astype(np.float64)
    heavy = weight[known][order].astype(np.float64)
    total = float(heavy.sum())
    count = min(BINS, int(total / LEAST))
    if count < 2:
        return Correction()
    place = np.minimum((np.cumsum(heavy) - heavy / 2) * count / total, count - 1).astype(np.int64)
    bins = np.zeros((count, 3))
    np.add.at(bins, place, np.stack([heavy, heavy * forecast, heavy * seen], axis=1))
    bins = bins[bins[:, 0] > 0]
    from sklearn.isotonic import IsotonicRegression  # takes a second, and most memories come with theirs

    means = bins[:, 1:] / bins[:, :1]
    fitted = IsotonicRegression().fit(means[:, 0], means[:, 1], sample_weight=bins[:, 0])
    return Correction(tuple(map(float, fitted.X_thresholds_)), tuple(map(float, fitted.y_thresholds_)))


def gains(columns: Columns) -> Floats:
    """Gain of each row; failures of a timed parent count as the floor.

    NaN where nothing can be said, and for sources that hold winners alone.
    """
    clipped = np.clip(columns.reward, FLOOR, CAP)
    lost: Bools = columns.failed & columns.parent_timed
    known = np.where(lost, np.float32(FLOOR), clipped)
    return np.where(columns.rated, known, np.float32(np.nan)).astype(np.float32)


def credited(columns: Columns, gain: Floats, expected: Floats) -> tuple[Floats, Floats]:
    """Advantage of each row over its siblings and the state's expectation, and the weight of that contrast, 0..1.

    A step is credited with what it gained beyond its siblings, the other children of its parent, because they share all
    that the state does not tell; where there are few, the state's expectation stands in for them. The advantage is NaN
    where there is no gain.
    """
    known = ~np.isnan(gain)
    weight = np.where(known, columns.weight, 0.0).astype(np.float64)
    worth = weight * np.where(known, gain, 0.0)
    groups = columns.siblings
    count = int(groups.max(initial=-1)) + 1
    others = np.bincount(groups, weights=weight, minlength=count)[groups] - weight
    others_worth = np.bincount(groups, weights=worth, minlength=count)[groups] - worth
    base = (SIBLINGS * expected + others_worth) / (SIBLINGS + others)
    sure = ALONE + (1.0 - ALONE) * others / (SIBLINGS + others)
    return (gain - base).astype(np.float32), sure.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a state lets expect.

    Attributes:
        terms: coefficients: ``1``, ``family=matmul``, ``step``, ``step^2``, ``step?`` (unknown), ``has:shuffle``.
        correction: what their sum really came to.
    """

    terms: tuple[tuple[str, float], ...]
    correction: Correction = field(default_factory=Correction)

    def rounded(self) -> Expectation:
        """As a manifest holds it, so that platforms agree."""
        points = zip(self.correction.predicted, self.correction.observed, strict=True)
        corrected = [(round(x, 4), round(y, 6)) for x, y in points]
        return Expectation(
            tuple((name, round(value, 6)) for name, value in self.terms if round(value, 6)),
            Correction(tuple(x for x, _ in corrected), tuple(y for _, y in corrected)),
        )

    def line(self, columns: Columns) -> Floats:
        """Sum of the terms of each row, not corrected: what a row's own credit is against (``cross_fitted``)."""
        known = dict(self.terms)
        names = _term_names(columns)
        weights = np.array([known.get(name, 0.0) for name in names])
        parts = [design @ weights for _, design in _designs(columns)]
        return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)

    def predict_state(self, state: State) -> float:
        """Expected gain of the next step from ``state``."""
        values = state_terms(state)
        total = sum(weight * values.get(name, 0.0) for name, weight in self.terms)
        return float(self.correction.of(np.array([total], np.float32))[0])


def fit(columns: Columns, target: Floats) -> Expectation:
    """Weighted ridge regression of ``target`` on the state, within sources; rows with NaN targets are left out."""
    weights = _solved(_sums(columns, target, np.zeros(len(columns), np.int64), 1), np.array([0]))
    return Expectation(tuple(zip(_term_names(columns), map(float, weights), strict=True)))


def cross_fitted(columns: Columns, target: Floats) -> Floats:
    """Expected gain of each row from a model that never saw the row's operator."""
    fold = [zlib.crc32(operator_name(name).encode()) % FOLDS for name in columns.task.names]
    folds = np.array(fold or [0])[columns.task.values]
    sums = _sums(columns, target, folds, FOLDS)
    expected = np.zeros(len(columns), np.float32)
    weights = np.stack([_solved(sums, np.delete(np.arange(FOLDS), held)) for held in range(FOLDS)], axis=1)
    for rows, design in _designs(columns):
        expected[rows] = np.take_along_axis(design @ weights, folds[rows, None], axis=1)[:, 0]
    return expected


def state_terms(state: State) -> dict[str, float]:
    """Non-zero terms of one state."""
    terms = {"1": 1.0}
    for name in CATEGORIES:
        value = getattr(state, name)
        if value is not None:
            terms[f"{name}={getattr(value, 'value', value)}"] = 1.0
    for name in NUMBERS:
        value = number_of(state, name)
        if value is None:
            terms[f"{name}?"] = 1.0
            continue
        scaled = scaled_number(name, value)
        terms[name], terms[f"{name}^2"] = scaled, scaled * scaled
    terms |= {f"has:{name}": 1.0 for name in state.features}
    return terms


def number_of(state: State, name: str) -> float | None:
    """Value of one of :data:`NUMBERS`; None when the state does not know it."""
    if name == "log2_runtime":
        return None if state.runtime_us is None else math.log2(state.runtime_us)
    value = getattr(state, name)
    return None if value is None else float(value)


def scaled_number(name: str, value: float) -> float:
    """``value`` centred, scaled and clipped."""
    centre, scale = SCALES[name]
    return min(CLIP, max(-CLIP, (value - centre) / scale))


def _term_names(columns: Columns) -> list[str]:
    names = ["1"]
    for name in CATEGORIES:
        names += [f"{name}={value}" for value in columns.categories[name].names]
    for name in NUMBERS:
        names += [name, f"{name}^2", f"{name}?"]
    return names + [f"has:{name}" for name in columns.feature_names]


def _designs(columns: Columns) -> Iterator[tuple[slice, Matrix]]:
    for start in range(0, len(columns), CHUNK):
        rows = slice(start, min(start + CHUNK, len(columns)))
        yield rows, _design(columns, rows)


def _design(columns: Columns, rows: slice) -> Matrix:
    count = rows.stop - rows.start
    blocks = [np.ones((count, 1))]
    for name in CATEGORIES:
        found = columns.categories[name]
        blocks.append((found.values[rows, None] == np.arange(len(found.names))).astype(np.float64))
    for name in NUMBERS:
        centre, scale = SCALES[name]
        value = np.clip((columns.numbers[name][rows].astype(np.float64) - centre) / scale, -CLIP, CLIP)
        unknown = np.isnan(value)
        value[unknown] = 0.0
        blocks.append(np.stack([value, value * value, unknown], axis=1))
    blocks.append(columns.features[rows].astype(np.float64))
    return np.concatenate(blocks, axis=1)


_Sums = tuple[Matrix, Matrix, Matrix, Matrix]
"""By fold: weighted sums of products of terms and of terms with targets, then by source of terms and of targets."""


def _sums(columns: Columns, target: Floats, folds: npt.NDArray[np.int64], count: int) -> _Sums:
    width, sources = len(_term_names(columns)), len(columns.source.names)
    shapes = ((width, width), (width,), (sources, width), (sources,))
    gram, moment, terms, targets = (np.zeros((count, *shape)) for shape in shapes)
    for rows, design in _designs(columns):
        known = ~np.isnan(target[rows])
        for fold in range(count):
            chosen = known & (folds[rows] == fold)
            part, source = design[chosen], columns.source.values[rows][chosen]
            weighted = part * columns.weight[rows][chosen, None]
            worth = columns.weight[rows][chosen] * target[rows][chosen]
            gram[fold] += part.T @ weighted
            moment[fold] += part.T @ worth
            np.add.at(terms[fold], source, weighted)
            np.add.at(targets[fold], source, worth)
    return gram, moment, terms, targets


def _solved(folds: _Sums, used: npt.NDArray[np.intp]) -> Matrix:
    """Coefficients from differences within sources, and the intercept that fits the mean over all, of the used folds.

    Sources differ more in how often steps gain than states do; without an intercept of its own for each, terms that
    tell sources apart would be credited with that. The first term is 1.
    """
    gram, moment, terms, targets = (part[used].sum(axis=0) for part in folds)
    weight = np.maximum(terms[:, 0], 1e-12)
    gram = gram - (terms / weight[:, None]).T @ terms
    moment = moment - (terms / weight[:, None]).T @ targets
    slopes = np.linalg.solve(gram[1:, 1:] + np.diag(np.full(len(moment) - 1, RIDGE)), moment[1:])
    total = terms.sum(axis=0)
    intercept = (targets.sum() - total[1:] @ slopes) / max(total[0], 1e-12)
    return np.concatenate(([intercept], slopes))
