"""Records of a memory to rows of its tables (:mod:`artifacts.memory.schemas`) and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.codec import decode, encode
from artifacts.memory.records import Strategy, Transition
from artifacts.memory.schemas import BATCH, SOURCES, STRATEGIES, TRANSITIONS, canonical, plain
from artifacts.task import TaskRef

T = TypeVar("T")


def record_rows(records: Iterable[object], schema: pa.Schema) -> pa.Table:
    """One row a record whose fields are the columns of ``schema``, in the order given."""
    return pa.Table.from_pylist([encode(record) for record in records], schema=schema)


def records_of(kind: type[T], table: pa.Table) -> tuple[T, ...]:
    """Inverse of :func:`record_rows`."""
    return tuple(decode(kind, row) for row in table.to_pylist())


def strategy_rows(strategies: Iterable[Strategy]) -> pa.Table:
    """One row a strategy, sorted by id; the text or number of a condition has a column of its own."""
    rows = [encode(strategy) for strategy in sorted(strategies, key=lambda item: item.strategy_id)]
    for condition in (condition for row in rows for condition in row["when"]):
        value = condition.pop("value")
        condition["text" if isinstance(value, str) else "number"] = value
    return pa.Table.from_pylist(rows, schema=STRATEGIES)


def strategies_of(table: pa.Table) -> tuple[Strategy, ...]:
    """Inverse of :func:`strategy_rows`."""
    rows = table.to_pylist()
    for condition in (condition for row in rows for condition in row["when"]):
        text, number = condition.pop("text"), condition.pop("number")
        condition["value"] = number if text is None else text
    return tuple(decode(Strategy, row) for row in rows)


def transition_rows(transitions: Iterable[Transition]) -> pa.Table:
    """One row a transition, sorted by id; reads the records in batches so that a generator stays a generator."""
    iterator = iter(transitions)
    batches = []
    while rows := [transition_row(item) for item in islice(iterator, BATCH)]:
        batches.append(pa.Table.from_pylist(rows, schema=TRANSITIONS))
    if not batches:
        return TRANSITIONS.empty_table()
    return canonical(pa.concat_tables(batches))


def transitions_of(table: pa.Table) -> Iterator[Transition]:
    """Records of the rows, one at a time."""
    for batch in table.to_batches(max_chunksize=BATCH):
        for row in batch.to_pylist():
            yield _transition_of(row)


WORDS = ("flags", "techniques", "moves", "state_features", "state_history")
"""Columns of several words in one text, which dictionaries hold better than lists."""
TASK = tuple(field.name for field in fields(TaskRef))


def transition_row(item: Transition) -> dict[str, Any]:
    """Columns of one transition as plain values."""
    row: dict[str, Any] = encode(item)
    row |= row.pop("task")
    for prefix in ("state", "provenance"):
        row |= {f"{prefix}_{name}": value for name, value in row.pop(prefix).items()}
    return row | {name: " ".join(row[name]) for name in WORDS}


def _transition_of(row: dict[str, Any]) -> Transition:
    row |= {name: row[name].split() for name in WORDS}
    parts: dict[str, Any] = {"task": {name: row.pop(name) for name in TASK}}
    for prefix in ("state", "provenance"):
        names = [name for name in row if name.startswith(f"{prefix}_")]
        parts[prefix] = {name.removeprefix(f"{prefix}_"): row.pop(name) for name in names}
    return decode(Transition, row | parts)


def source_rows(transitions: pa.Table) -> pa.Table:
    """Figures of each input file, from the transitions that were read out of it."""
    keys = ("source", "format", "file", "file_sha256", "importer_version")
    columns = {key: transitions[key if key == "source" else f"provenance_{key}"] for key in keys}
    columns["measured"] = transitions["reward"].is_valid().cast(pa.int64())
    columns["failures"] = pc.not_equal(transitions["outcome"].cast(pa.string()), "correct").cast(pa.int64())
    grouped = plain(pa.table(columns)).group_by(keys)
    sums = grouped.aggregate([("measured", "count"), ("measured", "sum"), ("failures", "sum")])
    figures = {"transitions": "measured_count", "measured": "measured_sum", "failures": "failures_sum"}
    table = pa.table({field.name: sums[figures.get(field.name, field.name)].cast(field.type) for field in SOURCES})
    return table.sort_by([("source", "ascending"), ("file", "ascending")]).cast(SOURCES).combine_chunks()
