"""Shuffled memories as one control: each deal of the labels is a matter of luck, many of them are a distribution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from artifacts.memory.htg import Memory
from builder.judge.metrics import Judgement
from builder.judge.rankers import Fitted, Ranker
from builder.judge.replay import Record, mean_by_task

DEALS = 19
"""Shuffled memories that are tried: beating them all is a one-sided test at 5 %."""
SHUFFLED = "shuffled memory"
LATEST = 2
"""Place among siblings from which on steps are dealt to each other: first, second, later."""


class Shuffled:
    """A ranker whose training memory has its directions and strategies dealt out at random."""

    def __init__(self, inner: Ranker, seed: int) -> None:
        self.inner, self.seed, self.name = inner, seed, f"{SHUFFLED} {seed}"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`builder.judge.rankers.Ranker`."""
        return self.inner.fit(shuffled(memory, self.seed), level)


def deals(inner: Ranker) -> tuple[Ranker, ...]:
    """``inner`` over :data:`DEALS` shuffled memories."""
    return tuple(Shuffled(inner, seed) for seed in range(DEALS))


def shuffled(memory: Memory, seed: int) -> Memory:
    """``memory`` with the pairs (direction, strategy) dealt out anew among rows of one source and place.

    A log that goes on from its best candidate tries until something gains, so that what is tried late gains more
    whatever it is. The place among siblings is kept, so that the control knows as much of that as the memory does.
    """
    random, table, columns = np.random.default_rng(seed), memory.table, memory.columns
    strata = columns.source.values.astype(np.int64) * (LATEST + 1) + np.minimum(_places(memory), LATEST)
    order = np.arange(len(memory))
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        order[rows] = random.permutation(rows)
    # What the state predicts does not depend on the labels, so it need not be fitted again for each deal.
    columns_of = {name: table[name].take(pa.array(order)) for name in ("direction_id", "strategy_id")}
    columns_of["expected"] = pa.chunked_array([pa.array(memory.expected.astype(np.float64))])
    for name, column in columns_of.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)
    manifest = replace(memory.manifest, expectation=memory.expectation.mapping())
    return replace(memory, manifest=manifest, table=table)


def together(records: Sequence[Record]) -> tuple[Record, ...]:
    """``records`` with those of all shuffled memories averaged, occasion by occasion, into one control."""
    others = tuple(record for record in records if not _is_deal(record))
    dealt: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if _is_deal(record):
            dealt[id(record.occasion)].append(record)
    return others + tuple(
        replace(found[0], ranker=SHUFFLED, judgement=_average([record.judgement for record in found]))
        for found in dealt.values()
    )


def chance(records: Sequence[Record], judged: str) -> float | None:
    """Probability that labels dealt out at random rank as well as ``judged``, each task counting once."""
    by_ranker: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.ranker == judged or _is_deal(record):
            by_ranker[record.ranker].append(record)
    regrets = {name: mean_by_task(found) for name, found in by_ranker.items()}
    ours = regrets.pop(judged, None)
    if ours is None or not regrets:
        return None
    return (1 + sum(regret <= ours for regret in regrets.values())) / (1 + len(regrets))


def _is_deal(record: Record) -> bool:
    return record.ranker.startswith(f"{SHUFFLED} ")


def _places(memory: Memory) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Place of each row among its siblings by step, from 0; what was tried in one step shares its place."""
    columns = memory.columns
    step = columns.numbers["step"]
    order = np.lexsort((step, columns.siblings))
    another = np.diff(columns.siblings[order], prepend=-1) != 0
    later = np.diff(step[order], prepend=step[:1]) != 0
    rank = np.cumsum(later | another)
    places = np.empty(len(order), np.int64)
    places[order] = rank - np.maximum.accumulate(np.where(another, rank, 0))
    return places


def _average(found: Sequence[Judgement]) -> Judgement:
    first = found[0]
    return replace(
        first,
        regret=_mean([item.regret for item in found]),
        kept=_mean([item.kept for item in found]),
        right=_mean([item.right for item in found]),
        ndcg=None if first.ndcg is None else _mean([item.ndcg or 0.0 for item in found]),
        hit=None if first.hit is None else _mean([item.hit or 0.0 for item in found]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
