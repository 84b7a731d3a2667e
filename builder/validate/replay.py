"""Held-out replay: what would have been gained at recorded choices, had the memory chosen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pyarrow as pa

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from artifacts.statistics import Array, Interval, mean_interval, resampled
from builder.validate.decision_points import LEVELS, DecisionPoint, decision_points, operator_folds
from builder.validate.rankers import Ranker

FOLDS = 20
NOTICEABLE = 0.07
"""Gains in log2 that differ by less (5 %) count as equal: timings are not better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training memory and the decision points it is tried on; no operator is in both."""

    train: Memory
    test: tuple[DecisionPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One ranker at one decision point: ``means`` are its estimates of the options tried, unknown ones below all."""

    ranker: str
    point: DecisionPoint
    means: Mapping[str, float]

    @property
    def regret(self) -> float:
        """Gain of the best option minus the mean gain of those ranked first, in log2."""
        gains, top = self.point.gains, max(self.means.values())
        chosen = [gains[option] for option, mean in self.means.items() if mean == top]
        return max(gains.values()) - sum(chosen) / len(chosen)

    @property
    def pairwise(self) -> float | None:
        """Share of sibling pairs in the right order, ties one half; None when no pair differs noticeably."""
        gains, means, found = self.point.gains, self.means, []
        for one, other in combinations(sorted(gains), 2):
            difference = gains[one] - gains[other]
            if abs(difference) >= NOTICEABLE:
                tied = means[one] == means[other]
                found.append(0.5 if tied else float((means[one] > means[other]) == (difference > 0)))
        return sum(found) / len(found) if found else None

    @property
    def ndcg(self) -> float | None:
        """Discounted gain of the ranking over that of the best one, ties averaged; None when nothing was gained."""
        worth = [max(gain, 0.0) for gain in self.point.gains.values()]
        if not any(worth):
            return None
        from sklearn.metrics import ndcg_score

        return float(ndcg_score([worth], [[self.means[option] for option in self.point.gains]]))

    @property
    def hit(self) -> float | None:
        """Share of the options ranked among the first three that is the best; None with three options or fewer."""
        gains, means = self.point.gains, self.means
        if len(gains) <= 3:
            return None
        best = max(gains, key=lambda option: (gains[option], option))
        above = sum(mean > means[best] for mean in means.values())
        tied = sum(mean == means[best] for mean in means.values())
        return min(1.0, max(0.0, (3 - above) / tied))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What replay says of one ranker, each task counting once.

    Attributes:
        regret: mean log2 gain lost against the best option tried; ``ndcg``, ``hit3``, ``pairwise``: means over tasks.
        margin: share of this ranker's regret that the validated one saves, paired by task.
    """

    ranker: str
    decision_points: int
    regret: Interval
    ndcg: Interval
    hit3: Interval
    pairwise: Interval
    margin: Interval


def level_splits(memory: Memory) -> dict[str, tuple[Split, ...]]:
    """Splits of each level with decision points, over the same folds: what was fitted on a fold serves both."""
    points = {level: decision_points(memory, level) for level in LEVELS}
    shared = tuple(held_out(memory, [point for found in points.values() for point in found]))
    splits: dict[str, tuple[Split, ...]] = {}
    for level, found in points.items():
        own = set(map(id, found))
        tests = [tuple(point for point in split.test if id(point) in own) for split in shared]
        splits[level] = tuple(
            Split(train=split.train, test=test) for split, test in zip(shared, tests, strict=True) if test
        )
    return splits


def held_out(
    memory: Memory, points: Sequence[DecisionPoint], *, trained: Bools | None = None, families: bool = False
) -> Iterator[Split]:
    """Folds over the operators of ``points``: of a fold's operators (their families) nothing is trained on.

    Args:
        trained: rows that may be learnt from; None for all.
        families: leave out every task of the tested operator families.
    """
    for held in operator_folds({point.task for point in points}, FOLDS):
        rows = ~memory.columns.task.among(memory.same_operators(held))
        if families:
            family = memory.columns.categories["family"].values
            rows &= ~np.isin(family, np.unique(family[~rows]))
        if trained is not None:
            rows &= trained
        if rows.any():
            test = tuple(point for point in points if point.task in held)
            yield Split(train=training(memory, rows), test=test)


def training(memory: Memory, keep: Bools) -> Memory:
    """What a ranker may learn from: the rows under ``keep`` and the options that are in them."""
    table = memory.table.filter(pa.array(keep))
    known = {name: set(table[name].unique().to_pylist()) for name in ("direction_id", "strategy_id")}
    return replace(
        memory.rows(keep),
        directions=tuple(item for item in memory.directions if item.direction_id in known["direction_id"]),
        strategies=tuple(item for item in memory.strategies if item.strategy_id in known["strategy_id"]),
    )


def run(splits: Iterable[Split], rankers: Mapping[str, Ranker], level: str) -> tuple[Record, ...]:
    """Every ranker, by its name, at every decision point of every split."""
    records = []
    for split in splits:
        for name, ranker in rankers.items():
            estimates = ranker(split.train, level)
            records += [record(name, point, estimates(point.state)) for point in split.test]
    return tuple(records)


def record(ranker: str, point: DecisionPoint, estimates: Mapping[str, float]) -> Record:
    """Estimates at one decision point; an option that the ranker does not know ranks last."""
    lowest = min(estimates.values(), default=0.0) - 1.0
    return Record(ranker=ranker, point=point, means={option: estimates.get(option, lowest) for option in point.gains})


def figures(records: Sequence[Record], validated: str) -> tuple[Figures, ...]:
    """Figures of every ranker, ``validated`` first."""
    by_ranker: dict[str, list[Record]] = defaultdict(list)
    for item in records:
        by_ranker[item.ranker].append(item)
    ours = _task_means(by_ranker[validated], lambda item: item.regret)
    names = [validated, *(name for name in by_ranker if name != validated)]
    return tuple(_figures(name, by_ranker[name], ours) for name in names)


def _figures(name: str, records: Sequence[Record], ours: Array) -> Figures:
    regret = _task_means(records, lambda item: item.regret)
    return Figures(
        ranker=name,
        decision_points=len({item.point.rows for item in records}),
        regret=mean_interval(regret),
        ndcg=mean_interval(_task_means(records, lambda item: item.ndcg)),
        hit3=mean_interval(_task_means(records, lambda item: item.hit)),
        pairwise=mean_interval(_task_means(records, lambda item: item.pairwise)),
        margin=resampled(lambda mine, theirs: 1.0 - mine / theirs, ours, regret),
    )


def mean_regret(records: Sequence[Record]) -> float:
    """Mean regret of one ranker's records, each task counting once."""
    return float(_task_means(records, lambda item: item.regret).mean())


def regret_by_task(records: Iterable[Record]) -> dict[str, float]:
    """Task to the mean regret of ``records`` there, tasks in sorted order."""
    return _means(records, lambda item: item.regret)


def _task_means(records: Iterable[Record], value: Callable[[Record], float | None]) -> Array:
    return np.array(list(_means(records, value).values()), np.float64)


def _means(records: Iterable[Record], value: Callable[[Record], float | None]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for item in records:
        known = value(item)
        if known is not None:
            found[item.point.task].append(known)
    return {task: math.fsum(values) / len(values) for task, values in sorted(found.items())}
