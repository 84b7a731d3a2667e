"""Held-out replay: what would have been gained at recorded choices, had the memory chosen."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from builder.judge.bootstrap import Interval, improvement_interval, ratio_interval
from builder.judge.metrics import Judgement, judge
from builder.judge.occasions import Occasion, occasions
from builder.judge.rankers import Ranker

FOLDS = 20
"""Groups of tasks that are left out in turn: with 5, savings on the public logs moved by 25 points with the deal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training memory and the occasions it is tried on; no task is in both."""

    name: str
    train: Memory
    test: tuple[Occasion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One ranker on one occasion."""

    ranker: str
    occasion: Occasion
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What replay says of one ranker, each task counting once.

    Attributes:
        regret: mean log2 gain lost against the best option tried; ``ndcg``, ``hit3``, ``pairwise``: means over tasks.
        saving: share of this ranker's regret that the judged one saves; ``saving_by_occasion`` the same with each
            occasion counting once, so that tasks with many occasions weigh more.
        kept: regret of a search that keeps its best, see :class:`builder.judge.metrics.Judgement`; ``kept_saving`` and
            ``kept_saving_by_occasion`` as above.
    """

    ranker: str
    occasions: int
    regret: Interval
    ndcg: Interval
    hit3: Interval
    pairwise: Interval
    saving: Interval
    saving_by_occasion: Interval
    kept: Interval
    kept_saving: Interval
    kept_saving_by_occasion: Interval


def task_splits(memory: Memory, level: str, folds: int = FOLDS, seed: int = 0) -> Iterator[Split]:
    """Leave-tasks-out folds over the tasks with choices: one task a fold where ``folds`` are enough.

    Many small folds, because with few and large ones it is a matter of luck which tasks are learnt from.
    """
    found = occasions(memory, level)
    tasks = sorted({item.task for item in found}, key=lambda task: (zlib.crc32(f"{seed}:{task}".encode()), task))
    for fold in range(min(folds, len(tasks))):
        held = set(tasks[fold::folds])
        test = tuple(item for item in found if item.task in held)
        codes = [memory.columns.task.code(task) for task in held]
        train = training(memory, ~np.isin(memory.columns.task.values, codes))
        yield Split(name=f"fold {fold}", train=train, test=test)


def training(memory: Memory, keep: Bools) -> Memory:
    """What a ranker may learn from: the rows under ``keep`` and the options that are in them."""
    table = memory.table.filter(pa.array(keep))
    known = {name: set(table[name].unique().to_pylist()) for name in ("direction_id", "strategy_id")}
    return replace(
        memory.rows(keep),
        directions=tuple(item for item in memory.directions if item.direction_id in known["direction_id"]),
        strategies=tuple(item for item in memory.strategies if item.strategy_id in known["strategy_id"]),
    )


def group_splits(memory: Memory, level: str, group: Callable[[Occasion], str]) -> Iterator[Split]:
    """Leave one group (source, device) out; tasks of the test group leave the training memory too."""
    found = occasions(memory, level)
    columns = memory.columns
    for name in sorted({group(item) for item in found}):
        test = tuple(item for item in found if group(item) == name)
        rows = np.zeros(len(memory), np.bool_)
        arch = columns.categories["arch"]
        rows |= (columns.source.values == columns.source.code(name)) | (arch.values == arch.code(name))
        tasks = {item.task for item in test}
        rows |= np.isin(columns.task.values, [columns.task.code(task) for task in tasks])
        if rows.all():
            continue
        yield Split(name=name, train=training(memory, ~rows), test=test)


def run(splits: Iterable[Split], rankers: Sequence[Ranker], level: str) -> tuple[Record, ...]:
    """Every ranker on every occasion of every split."""
    records = []
    for split in splits:
        for ranker in rankers:
            fitted = ranker.fit(split.train, level)
            for occasion in split.test:
                judgement = judge(occasion.gains, fitted.estimates(occasion.state), occasion.kept)
                records.append(Record(ranker=ranker.name, occasion=occasion, judgement=judgement))
    return tuple(records)


def figures(records: Sequence[Record], judged: str) -> tuple[Figures, ...]:
    """Figures of every ranker, ``judged`` first."""
    by_ranker: Mapping[str, list[Record]] = defaultdict(list)
    for record in records:
        by_ranker[record.ranker].append(record)
    names = [judged, *(name for name in by_ranker if name != judged)]
    return tuple(_figures(name, by_ranker[name], by_ranker[judged]) for name in names)


def mean_by_task(records: Sequence[Record]) -> float:
    """Mean regret of one ranker's records, each task counting once."""
    share = _shares([record.occasion.task for record in records])
    return sum(_weighted([record.judgement.regret for record in records], share)) / sum(share)


def _figures(name: str, records: list[Record], judged: list[Record]) -> Figures:
    tasks = [record.occasion.task for record in records]
    found = [record.judgement for record in records]
    share = _shares(tasks)
    ours = [record.judgement.regret for record in judged]
    ours_kept = [record.judgement.kept for record in judged]
    regrets, kept = [item.regret for item in found], [item.kept for item in found]
    pairs = [_ratio(item.right, item.pairs) for item in found]
    return Figures(
        ranker=name,
        occasions=len(records),
        regret=_mean(tasks, list(regrets)),
        ndcg=_mean(tasks, [item.ndcg for item in found]),
        hit3=_mean(tasks, [item.hit for item in found]),
        pairwise=_mean(tasks, pairs),
        saving=improvement_interval(tasks, _weighted(ours, share), _weighted(regrets, share)),
        saving_by_occasion=improvement_interval(tasks, ours, regrets),
        kept=_mean(tasks, list(kept)),
        kept_saving=improvement_interval(tasks, _weighted(ours_kept, share), _weighted(kept, share)),
        kept_saving_by_occasion=improvement_interval(tasks, ours_kept, kept),
    )


def _mean(tasks: list[str], values: list[float | None]) -> Interval:
    """Mean over tasks of the task's mean: a task counts once, however many occasions it has."""
    known = [(task, value) for task, value in zip(tasks, values, strict=True) if value is not None]
    names = [task for task, _ in known]
    share = _shares(names)
    return ratio_interval(names, _weighted([value for _, value in known], share), share)


def _shares(tasks: list[str]) -> list[float]:
    count = Counter(tasks)
    return [1.0 / count[task] for task in tasks]


def _weighted(values: list[float], shares: list[float]) -> list[float]:
    return [value * share for value, share in zip(values, shares, strict=True)]


def _ratio(right: float, pairs: int) -> float | None:
    return right / pairs if pairs else None
