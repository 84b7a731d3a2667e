"""What the transitions of a strategy or direction say: its effect with an interval, and when a strategy helps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import CATEGORIES, Bools, Columns, Floats
from artifacts.memory.expectation import number_of
from artifacts.memory.records import Condition, Effect
from artifacts.statistics import LEAST_TASKS, nested_means
from artifacts.trajectory import State

PRIOR_SD = 1.0
"""Standard deviation in log2 that is assumed of an effect before it was seen."""
NOISE = 0.05
"""Standard error in log2 that timings leave in the mean of a task, however well its steps agree."""
Groups = npt.NDArray[np.int64]


def effects_by(columns: Columns, groups: Groups, count: int) -> tuple[Effect, ...]:
    """Effect of each group 0..count-1; rows with a negative group are left out."""
    seen = ~np.isnan(columns.reward) & columns.rated
    which = np.where(seen, groups, -1)
    found = nested_means(
        np.where(seen, columns.reward, 0.0).astype(np.float64),
        columns.weight.astype(np.float64),
        which,
        count,
        plans=columns.plan.astype(np.int64),
        tasks=columns.operator.values.astype(np.int64),
        sources=columns.source.values.astype(np.int64),
    )
    known = found.tasks >= LEAST_TASKS
    noise = NOISE**2 / np.maximum(found.tasks, 1)
    mean = np.where(known, found.mean * PRIOR_SD**2 / (PRIOR_SD**2 + found.variance + noise), 0.0)
    half = np.where(known, np.hypot(found.half, 1.96 * np.sqrt(noise)), 1.96 * PRIOR_SD)
    measured = np.bincount(which[which >= 0], minlength=count)
    failures = np.bincount(groups[columns.failed & (groups >= 0)], minlength=count)
    return tuple(
        Effect(
            mean=_rounded(mean[i]),
            low=_rounded(mean[i] - half[i]),
            high=_rounded(mean[i] + half[i]),
            n=int(measured[i]),
            tasks=int(found.tasks[i]),
            failures=int(failures[i]),
        )
        for i in range(count)
    )


def _rounded(value: float) -> float:
    return round(float(value), 6) + 0.0


Doubles = npt.NDArray[np.float64]
MOST = 3
FEWEST = 5
"""Transitions that each side of a split needs."""
LEAST_Z = 2.5
"""Over the public logs this gives no condition when gains are permuted; 2 gives one in 25 strategies."""
SHRINK = 4.0
NUMBER_WORDS = {
    "fraction_of_bound": "fraction of the speed-of-light bound reached",
    "log2_speedup": "log2 speedup over eager",
    "log2_progress": "log2 gain since the first correct kernel",
    "log2_runtime": "log2 of the run time in µs",
    "step": "step number",
    "stagnation": "steps without a gain",
}
CATEGORY_WORDS = {
    "family": "the operator is {}",
    "arch": "the device is {}",
    "language": "the kernel is written in {}",
    "dtype": "the data type is {}",
    "size": "the shapes are {}",
    "bottleneck": "the kernel is bound by {}",
    "last_outcome": "the last step ended as {}",
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">=": operator.ge,
}


def holds(condition: Condition, state: State) -> bool:
    """Whether ``state`` fulfils ``condition``; a number the state does not know is given the benefit of the doubt."""
    if condition.op in ("has", "lacks"):
        return (condition.field.removeprefix("feature:") in state.features) == (condition.op == "has")
    if condition.field in NUMBER_WORDS:
        number = number_of(state, condition.field)
        return number is None or COMPARE[condition.op](number, float(condition.value))
    value = getattr(state, condition.field)
    return COMPARE[condition.op]("" if value is None else str(getattr(value, "value", value)), str(condition.value))


def learned_conditions(columns: Columns, advantages: Floats, rows: Bools) -> tuple[Condition, ...]:
    """Conditions under which the transitions in ``rows`` beat what their states let expect."""
    chosen = np.flatnonzero(rows & ~np.isnan(advantages))
    if len(chosen) < 2 * FEWEST:
        return ()
    values, weights = advantages[chosen].astype(np.float64), columns.weight[chosen].astype(np.float64)
    scored = []
    for condition, opposite, inside in candidates(columns, chosen):
        score = contrast(values, weights, inside)
        if abs(score) >= LEAST_Z:
            scored.append((abs(score), condition if score > 0 else opposite))
    scored.sort(key=lambda item: (-item[0], item[1].words))
    clearest: dict[str, Condition] = {}
    for _, condition in scored:
        clearest.setdefault(condition.field, condition)
    return tuple(clearest.values())[:MOST]


def contrast(values: Doubles, weights: Doubles, inside: Bools, fewest: int = FEWEST) -> float:
    """z score of (mean inside - mean outside), shrunken; 0 when a side holds less than ``fewest`` values."""
    if min(inside.sum(), (~inside).sum()) < fewest:
        return 0.0
    means, variances = [], []
    for side in (inside, ~inside):
        weight = weights[side]
        total = weight.sum()
        if total <= 0:
            return 0.0
        mean = float((values[side] * weight).sum() / (total + SHRINK))
        spread = float((weight * (values[side] - mean) ** 2).sum() / total)
        means.append(mean)
        variances.append((spread + 1.0 / total) / total)
    return float((means[0] - means[1]) / np.sqrt(sum(variances)))


def candidates(columns: Columns, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Condition, Condition, Bools]]:
    """Predicates that split ``rows``, each with its opposite and the rows on its side."""
    yield from _category_splits(columns, rows)
    yield from _number_splits(columns, rows)
    yield from _feature_splits(columns, rows)


def _category_splits(columns: Columns, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Condition, Condition, Bools]]:
    for name in CATEGORIES:
        column = columns.categories[name]
        values = column.values[rows]
        for code in np.unique(values[values >= 0]):
            value = column.names[code]
            if value == "unknown":
                continue
            words = CATEGORY_WORDS[name].format(value)
            negated = words.replace(" is ", " is not ", 1).replace(" are ", " are not ", 1)
            negated = negated.replace(" ended as ", " did not end as ", 1)
            yield (
                Condition(field=name, op="==", value=value, words=words),
                Condition(field=name, op="!=", value=value, words=negated),
                values == code,
            )


def _number_splits(columns: Columns, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Condition, Condition, Bools]]:
    for name, words in NUMBER_WORDS.items():
        values = columns.numbers[name][rows]
        if np.isnan(values).any():
            continue
        for cut in sorted({round(float(np.quantile(values, share)), 2) for share in (0.33, 0.5, 0.67)}):
            yield (
                Condition(field=name, op=">=", value=cut, words=f"{words} is at least {cut:g}"),
                Condition(field=name, op="<", value=cut, words=f"{words} is below {cut:g}"),
                values >= cut,
            )


def _feature_splits(columns: Columns, rows: np.ndarray[Any, Any]) -> Iterator[tuple[Condition, Condition, Bools]]:
    for name, inside in zip(columns.feature_names, columns.features[rows].T, strict=True):
        words = name.replace("_", " ")
        yield (
            Condition(field=f"feature:{name}", op="has", value=name, words=f"the kernel has {words}"),
            Condition(field=f"feature:{name}", op="lacks", value=name, words=f"the kernel has no {words}"),
            inside,
        )
