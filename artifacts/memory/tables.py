"""Arrow schemas of a memory artifact, and records to rows and back.

Categories are dictionary columns and sets are space-separated sorted names in one dictionary column, because parents
are shared by siblings: a million transitions hold far fewer distinct feature sets. Any Parquet tool can read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck
from artifacts.memory.records import Condition, Direction, Effect, Excerpt, Strategy, Transition
from artifacts.outcome import Outcome
from artifacts.state import State
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, TrustFlag

CATEGORY = pa.dictionary(pa.int32(), pa.string())
TEXT = pa.large_string()


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


EFFECT = pa.struct(
    [_required(name, pa.float64()) for name in ("mean", "low", "high")]
    + [_required("n", pa.int64()), _required("effective_n", pa.float64()), _required("failures", pa.int64())]
)
CONDITION = pa.struct(
    [
        _required("field", pa.string()),
        _required("op", pa.string()),
        pa.field("text", pa.string()),
        pa.field("number", pa.float64()),
        _required("words", pa.string()),
    ]
)
EXCERPT = pa.struct(
    [_required("text", pa.string()), _required("transition_id", pa.string()), _required("gain", pa.float64())]
)

DIRECTIONS = pa.schema(
    [_required(name, pa.string()) for name in ("direction_id", "name", "description")]
    + [_required("effect", EFFECT), _required("resource", pa.string())]
)
STRATEGIES = pa.schema(
    [_required(name, pa.string()) for name in ("strategy_id", "direction_id", "name", "intent")]
    + [
        _required("when", _list_of(CONDITION)),
        _required("recipe", pa.string()),
        _required("template", pa.string()),
        _required("effect", EFFECT),
        _required("risks", _list_of(pa.string())),
        _required("evidence", _list_of(pa.string())),
        _required("risk_evidence", _list_of(_list_of(pa.string()))),
        _required("recipes", _list_of(EXCERPT)),
        _required("templates", _list_of(EXCERPT)),
    ]
)
TRANSITIONS = pa.schema(
    [
        _required("transition_id", TEXT),
        _required("source", CATEGORY),
        _required("trajectory_id", CATEGORY),
        _required("task_id", CATEGORY),
        _required("suite", CATEGORY),
        _required("family", CATEGORY),
        pa.field("level", pa.int32()),
        _required("device", CATEGORY),
        _required("llm", CATEGORY),
        _required("direction_id", CATEGORY),
        _required("strategy_id", CATEGORY),
        _required("outcome", CATEGORY),
        pa.field("reward", pa.float64()),
        pa.field("expected", pa.float64()),
        _required("weight", pa.float64()),
        _required("flags", CATEGORY),
        _required("siblings", TEXT),
        _required("parent_sha256", TEXT),
        _required("child_sha256", TEXT),
        pa.field("parent_us", pa.float64()),
        pa.field("child_us", pa.float64()),
        pa.field("choice_probability", pa.float64()),
        _required("plan", TEXT),
        _required("kernel", TEXT),
        _required("reference", TEXT),
        _required("error", TEXT),
        _required("state_family", CATEGORY),
        _required("state_arch", CATEGORY),
        _required("state_language", CATEGORY),
        _required("state_dtype", CATEGORY),
        _required("state_size", CATEGORY),
        _required("state_bottleneck", CATEGORY),
        pa.field("state_fraction_of_bound", pa.float64()),
        pa.field("state_log2_speedup", pa.float64()),
        _required("state_log2_progress", pa.float64()),
        pa.field("state_runtime_us", pa.float64()),
        pa.field("state_last_outcome", CATEGORY),
        _required("state_step", pa.int32()),
        _required("state_stagnation", pa.int32()),
        _required("state_features", CATEGORY),
        _required("state_history", CATEGORY),
        _required("provenance_format", CATEGORY),
        _required("provenance_importer_version", pa.int32()),
        _required("provenance_file", CATEGORY),
        _required("provenance_file_sha256", CATEGORY),
        pa.field("provenance_line", pa.int64()),
    ]
)
SOURCES = pa.schema(
    [_required(name, pa.string()) for name in ("source", "format", "file", "file_sha256")]
    + [_required(name, pa.int64()) for name in ("importer_version", "transitions", "measured", "failures")]
)
BATCH = 20_000
"""Records that are Python objects at one time while a table is written."""


def direction_rows(directions: Iterable[Direction]) -> pa.Table:
    """One row a direction, sorted by id."""
    rows = [asdict(direction) for direction in sorted(directions, key=lambda item: item.direction_id)]
    return pa.Table.from_pylist(rows, schema=DIRECTIONS)


def directions_of(table: pa.Table) -> tuple[Direction, ...]:
    """Inverse of :func:`direction_rows`."""
    return tuple(Direction(**row | {"effect": Effect(**row["effect"])}) for row in table.to_pylist())


def strategy_rows(strategies: Iterable[Strategy]) -> pa.Table:
    """One row a strategy, sorted by id."""
    rows = []
    for strategy in sorted(strategies, key=lambda item: item.strategy_id):
        row = asdict(strategy)
        row["when"] = [_condition_row(condition) for condition in strategy.when]
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=STRATEGIES)


def strategies_of(table: pa.Table) -> tuple[Strategy, ...]:
    """Inverse of :func:`strategy_rows`."""
    return tuple(_strategy_of(row) for row in table.to_pylist())


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


def canonical(transitions: pa.Table) -> pa.Table:
    """The same rows sorted by id, one chunk a column, dictionaries in order of first use, no schema metadata."""
    table = plain(transitions).sort_by("transition_id").combine_chunks()
    columns = [
        table[field.name].dictionary_encode() if pa.types.is_dictionary(field.type) else table[field.name]
        for field in TRANSITIONS
    ]
    return pa.table(columns, schema=TRANSITIONS).combine_chunks()


def plain(table: pa.Table) -> pa.Table:
    """``table`` with dictionary columns as the strings they stand for, and without metadata."""
    fields = [
        pa.field(
            field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type, field.nullable
        )
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def content_hash(table: pa.Table) -> str:
    """SHA-256 of what the table says: independent of chunks, dictionaries, metadata and the Parquet writer.

    Taken over an Arrow IPC stream of plain columns in batches of a fixed size; rows must already be in order.
    """
    digest = hashlib.sha256()
    sink = pa.PythonFile(_Digest(digest.update), mode="w")
    straight = plain(table).combine_chunks()
    with pa.ipc.new_stream(sink, straight.schema) as writer:
        for start in range(0, straight.num_rows, BATCH):
            # A slice keeps its parent's buffers and offsets; taking the rows makes the bytes those of the batch alone.
            piece = straight.slice(start, BATCH)
            writer.write_table(piece.take(pa.array(range(piece.num_rows))).combine_chunks())
    return digest.hexdigest()


class _Digest:
    """The few methods Arrow asks of a writable file, feeding a hash."""

    closed = False

    def __init__(self, update: Callable[[bytes], None]) -> None:
        self._update = update

    def write(self, data: bytes) -> int:
        self._update(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True


def _condition_row(condition: Condition) -> dict[str, Any]:
    is_text = isinstance(condition.value, str)
    return {
        "field": condition.field,
        "op": condition.op,
        "text": condition.value if is_text else None,
        "number": None if is_text else float(condition.value),
        "words": condition.words,
    }


def _condition_of(row: dict[str, Any]) -> Condition:
    value = row["number"] if row["text"] is None else row["text"]
    return Condition(field=row["field"], op=row["op"], value=value, words=row["words"])


def _strategy_of(row: dict[str, Any]) -> Strategy:
    changed = {
        "effect": Effect(**row["effect"]),
        "when": tuple(_condition_of(item) for item in row["when"]),
        "risks": tuple(row["risks"]),
        "evidence": tuple(row["evidence"]),
        "risk_evidence": tuple(tuple(ids) for ids in row["risk_evidence"]),
        "recipes": tuple(Excerpt(**item) for item in row["recipes"]),
        "templates": tuple(Excerpt(**item) for item in row["templates"]),
    }
    return Strategy(**row | changed)


def _joined(names: Iterable[str]) -> str:
    return " ".join(names)


STRAIGHT = (
    *("transition_id", "source", "trajectory_id", "device", "llm", "direction_id", "strategy_id", "plan", "reward"),
    *("expected", "weight", "siblings", "parent_sha256", "child_sha256", "parent_us", "child_us", "error"),
    *("choice_probability", "kernel", "reference"),
)
"""Fields of a transition that are columns as they are."""
STATE_STRAIGHT = (
    *("family", "arch", "dtype", "size", "fraction_of_bound", "log2_speedup", "log2_progress", "runtime_us"),
    *("step", "stagnation"),
)
PROVENANCE = ("format", "importer_version", "file", "file_sha256", "line")


def transition_row(item: Transition) -> dict[str, Any]:
    """Columns of one transition as plain values."""
    state, task, provenance = item.state, item.task, item.provenance
    row = {name: getattr(item, name) for name in STRAIGHT}
    row |= {"task_id": task.task_id, "suite": task.suite, "family": task.family, "level": task.level}
    row |= {"outcome": item.outcome.value, "flags": _joined(sorted(flag.value for flag in item.flags))}
    row |= {f"state_{name}": getattr(state, name) for name in STATE_STRAIGHT}
    row |= {
        "state_language": state.language.value,
        "state_bottleneck": state.bottleneck.value,
        "state_last_outcome": None if state.last_outcome is None else state.last_outcome.value,
        "state_features": _joined(sorted(state.features)),
        "state_history": _joined(state.history),
    }
    return row | {f"provenance_{name}": getattr(provenance, name) for name in PROVENANCE}


def _transition_of(row: dict[str, Any]) -> Transition:
    last = row["state_last_outcome"]
    state = State(
        **{name: row[f"state_{name}"] for name in STATE_STRAIGHT},
        language=Language(row["state_language"]),
        bottleneck=Bottleneck(row["state_bottleneck"]),
        last_outcome=None if last is None else Outcome(last),
        features=frozenset(row["state_features"].split()),
        history=tuple(row["state_history"].split()),
    )
    return Transition(
        **{name: row[name] for name in STRAIGHT},
        task=TaskRef(task_id=row["task_id"], suite=row["suite"], family=row["family"], level=row["level"]),
        state=state,
        outcome=Outcome(row["outcome"]),
        flags=frozenset(TrustFlag(name) for name in row["flags"].split()),
        provenance=Provenance(**{name: row[f"provenance_{name}"] for name in PROVENANCE}),
    )


def source_rows(transitions: pa.Table) -> pa.Table:
    """Figures of each input file, from the transitions that were read out of it."""
    keys = ["source", "provenance_format", "provenance_file", "provenance_file_sha256", "provenance_importer_version"]
    wanted = plain(transitions.select([*keys, "reward", "outcome"]))
    measured = wanted["reward"].is_valid().cast(pa.int64())
    failed = pc.not_equal(wanted["outcome"], "correct").cast(pa.int64())
    counted = wanted.select(keys).append_column("m", measured).append_column("f", failed)
    sums = counted.group_by(keys).aggregate([("m", "count"), ("m", "sum"), ("f", "sum")])
    columns = {
        "source": sums["source"],
        "format": sums["provenance_format"],
        "file": sums["provenance_file"],
        "file_sha256": sums["provenance_file_sha256"],
        "importer_version": sums["provenance_importer_version"].cast(pa.int64()),
        "transitions": sums["m_count"],
        "measured": sums["m_sum"],
        "failures": sums["f_sum"],
    }
    table = pa.table({field.name: columns[field.name] for field in SOURCES})
    return table.sort_by([("source", "ascending"), ("file", "ascending")]).cast(SOURCES).combine_chunks()
