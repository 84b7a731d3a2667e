"""What the state alone predicts of the next step's gain: the yardstick that directions are credited against.

A ridge regression on named terms, corrected by what such predictions came to on other tasks, so that a prediction can
be read, stored as JSON and computed for one state in microseconds. It is refitted whenever a filter takes experience
away, because a model that has seen the excluded task would leak it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import CATEGORIES, NUMBERS, Bools, Columns, Floats
from artifacts.memory.correction import Correction
from artifacts.state import State

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
CHUNK = 50_000
FOLDS = 8
AT = "at:"
"""Prefix of a correction's points among the terms of a manifest."""
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainSettings:
    """How an outcome becomes one number in log2.

    A failed or slower step costs the step, not the speed, because a search keeps its best: gains are floored. Single
    enormous wins over naive kernels are capped so that they do not drown the rest.

    A step is credited with what it gained beyond its siblings, the other children of its parent, because they share all
    that the state does not tell; where there are few, the state's expectation stands in for them.

    Attributes:
        siblings: how many siblings the state's expectation is worth.
        alone: weight of a step without siblings against one with many.
    """

    floor: float = -1.0
    cap: float = 4.0
    siblings: float = 1.0
    alone: float = 0.2

    def __post_init__(self) -> None:
        if not self.floor <= 0 < self.cap:
            raise ValueError(f"gains need floor <= 0 < cap, got {self.floor} and {self.cap}")
        if self.siblings <= 0 or not 0 <= self.alone <= 1:
            raise ValueError(f"siblings must be positive and alone in 0..1, got {self.siblings} and {self.alone}")


def gains(columns: Columns, settings: GainSettings) -> Floats:
    """Gain of each row; failures of a timed parent count as the floor, NaN where nothing can be said."""
    clipped = np.clip(columns.reward, settings.floor, settings.cap)
    lost: Bools = columns.failed & columns.parent_timed
    return np.where(lost, np.float32(settings.floor), clipped).astype(np.float32)


def credited(columns: Columns, gain: Floats, expected: Floats, settings: GainSettings) -> tuple[Floats, Floats]:
    """Advantage of each row over its siblings and the state's expectation, and the weight of that contrast, 0..1.

    NaN advantage where there is no gain.
    """
    known = ~np.isnan(gain)
    weight = np.where(known, columns.weight, 0.0).astype(np.float64)
    worth = weight * np.where(known, gain, 0.0)
    groups = columns.siblings
    count = int(groups.max(initial=-1)) + 1
    others = np.bincount(groups, weights=weight, minlength=count)[groups] - weight
    others_worth = np.bincount(groups, weights=worth, minlength=count)[groups] - worth
    base = (settings.siblings * expected + others_worth) / (settings.siblings + others)
    told = others / (settings.siblings + others)
    sure = settings.alone + (1.0 - settings.alone) * told
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

    @classmethod
    def stored(cls, mapping: Mapping[str, float]) -> Expectation:
        """Inverse of :meth:`mapping`."""
        points = sorted((float(name[len(AT) :]), value) for name, value in mapping.items() if name.startswith(AT))
        terms = tuple((name, value) for name, value in mapping.items() if not name.startswith(AT))
        return cls(terms, Correction(tuple(x for x, _ in points), tuple(y for _, y in points)))

    def mapping(self) -> dict[str, float]:
        """As a manifest holds it, rounded so that platforms agree: terms, and ``at:0.25`` where 0.25 is corrected."""
        points = zip(self.correction.predicted, self.correction.observed, strict=True)
        named = (*self.terms, *((f"{AT}{x:.4f}", y) for x, y in points))
        return {name: round(value, 6) for name, value in named if round(value, 6) or name.startswith(AT)}

    def predict(self, columns: Columns) -> Floats:
        """Expected gain of each row."""
        return self.correction.of(self.line(columns))

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


def fit(columns: Columns, target: Floats, ridge: float) -> Expectation:
    """Weighted ridge regression of ``target`` on the state; rows with NaN targets are left out."""
    names = _term_names(columns)
    gram, moment = _sums(columns, target, np.zeros(len(columns), np.int64), 1)
    return _named(names, _solve(gram[0], moment[0], ridge))


def cross_fitted(columns: Columns, target: Floats, ridge: float) -> Floats:
    """Expected gain of each row from a model that never saw the row's task."""
    folds = np.array([zlib.crc32(name.encode()) % FOLDS for name in columns.task.names] or [0])[columns.task.values]
    gram, moment = _sums(columns, target, folds, FOLDS)
    total: Matrix = gram.sum(axis=0)
    total_moment: Matrix = moment.sum(axis=0)
    expected = np.zeros(len(columns), np.float32)
    solved = [_solve(total - gram[k], total_moment - moment[k], ridge) for k in range(FOLDS)]
    weights = np.stack(solved, axis=1)
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
    blocks.append(_unpacked(columns, rows))
    return np.concatenate(blocks, axis=1)


def _unpacked(columns: Columns, rows: slice) -> Matrix:
    bits = columns.features[rows]
    wanted = np.arange(len(columns.feature_names))
    words = bits[:, wanted // 64] if len(wanted) else np.zeros((len(bits), 0), np.uint64)
    return ((words >> (wanted % 64).astype(np.uint64)) & np.uint64(1)).astype(np.float64)


def _sums(columns: Columns, target: Floats, folds: npt.NDArray[np.int64], count: int) -> tuple[Matrix, Matrix]:
    width = len(_term_names(columns))
    gram, moment = np.zeros((count, width, width)), np.zeros((count, width))
    for rows, design in _designs(columns):
        known = ~np.isnan(target[rows])
        for fold in range(count):
            chosen = known & (folds[rows] == fold)
            part = design[chosen]
            weighted = part * columns.weight[rows][chosen, None]
            gram[fold] += part.T @ weighted
            moment[fold] += weighted.T @ target[rows][chosen]
    return gram, moment


def _solve(gram: Matrix, moment: Matrix, ridge: float) -> Matrix:
    penalty = np.full(len(moment), ridge)
    penalty[0] = 1e-6  # the mean itself is not shrunk
    return np.linalg.solve(gram + np.diag(penalty), moment).astype(np.float64)


def _named(names: list[str], weights: Matrix) -> Expectation:
    return Expectation(tuple((name, float(weight)) for name, weight in zip(names, weights, strict=True)))
