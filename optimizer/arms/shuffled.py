"""Controls: a memory with the right structure and the wrong content."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.memory.columns import Bools, Columns
from artifacts.memory.edges import computed
from artifacts.memory.htg import Memory
from artifacts.memory.records import Strategy

CONTENT = ("name", "intent", "when", "recipe", "template", "risks", "recipes", "templates")
"""What a strategy says, as opposed to where it stands."""


def shuffled(memory: Memory, seed: int = 0) -> Memory:
    """Return ``memory`` with strategies that say what others say, and outcomes credited to random actions.

    Ids, numbers of transitions and the distribution of gains stay, so that only the content differs. Plans are mixed
    within a device and language, so that they speak of the right things and claim the wrong gains; kernels likewise
    among the rows that have one, so that as many are shown, chosen by the references of others.
    """
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(memory))
    table = memory.table
    for name in ("direction_id", "strategy_id"):
        table = _taken(table, name, order)
    table = _taken(table, "plan", _within(memory.columns, draw))
    table = _taken(table, "moves", _within(memory.columns, draw))
    offers = np.asarray(pc.not_equal(memory.table["kernel"], ""))
    table = _taken(table, "kernel", _within(memory.columns, draw, offers))
    circle = list(range(len(memory.strategies)))
    random.Random(seed).shuffle(circle)
    giver = dict(zip(circle, circle[1:] + circle[:1], strict=True))  # so that none keeps its own content
    strategies = tuple(
        replace(taker, **{name: getattr(memory.strategies[giver[position]], name) for name in CONTENT})
        for position, taker in enumerate(memory.strategies)
    )
    mixed = replace(memory, table=table, strategies=_retold(strategies, seed))
    return replace(mixed, edges=computed(mixed.table, mixed.columns, {}))


def _taken(table: pa.Table, name: str, order: npt.NDArray[np.int64]) -> pa.Table:
    position = table.schema.get_field_index(name)
    return table.set_column(position, table.schema.field(position), table[name].take(pa.array(order)))


def _within(columns: Columns, draw: np.random.Generator, moved: Bools | None = None) -> npt.NDArray[np.int64]:
    """An order that moves rows (those of ``moved``) among those of their device architecture and language only."""
    order = np.arange(len(columns), dtype=np.int64)
    kind = np.stack([columns.categories[name].values for name in ("arch", "language")], axis=1)
    _, group = np.unique(kind, axis=0, return_inverse=True)
    for one in np.unique(group):
        rows = np.flatnonzero((group == one) & (True if moved is None else moved))
        order[rows] = draw.permutation(rows)
    return order


def _retold(strategies: tuple[Strategy, ...], seed: int) -> tuple[Strategy, ...]:
    """Strategies whose recipes claim the origin and gain of others, because notes are found by these."""
    every = [item for strategy in strategies for item in strategy.recipes]
    said = iter(random.Random(seed).sample([item.text for item in every], len(every)))
    return tuple(
        replace(strategy, recipes=tuple(replace(item, text=next(said)) for item in strategy.recipes))
        for strategy in strategies
    )
