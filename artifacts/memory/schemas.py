"""Arrow schemas of a memory artifact, the canonical form of its rows, and their hash."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_VERSION = 5
"""What the files of a memory are written in; another one is not read."""
CATEGORY = pa.dictionary(pa.int32(), pa.string())
TEXT = pa.large_string()


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


def _required(kind: pa.DataType, names: str) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names.split()]


def _optional(kind: pa.DataType, names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names.split()]


EFFECT = pa.struct(
    [
        *_required(pa.float64(), "mean low high"),
        *_required(pa.int64(), "n tasks failures"),
    ]
)
CONDITION = pa.struct(
    [
        *_required(pa.string(), "field op"),
        *_optional(pa.string(), "text"),
        *_optional(pa.float64(), "number"),
        *_required(pa.string(), "words"),
    ]
)
EXCERPT = pa.struct([*_required(pa.string(), "text transition_id"), *_required(pa.float64(), "gain")])

DIRECTIONS = pa.schema(
    [
        *_required(pa.string(), "direction_id name description"),
        *_required(EFFECT, "effect"),
        *_required(pa.string(), "resource"),
    ]
)
STRATEGIES = pa.schema(
    [
        *_required(pa.string(), "strategy_id direction_id name intent"),
        *_required(_list_of(CONDITION), "when"),
        *_required(pa.string(), "recipe template"),
        *_required(EFFECT, "effect"),
        *_required(_list_of(pa.string()), "risks evidence"),
        *_required(_list_of(_list_of(pa.string())), "risk_evidence"),
        *_required(_list_of(EXCERPT), "recipes templates"),
    ]
)
TRANSITIONS = pa.schema(
    [
        *_required(TEXT, "transition_id"),
        *_required(CATEGORY, "source trajectory_id task_id suite family"),
        *_optional(pa.int32(), "level"),
        *_required(CATEGORY, "device llm direction_id strategy_id outcome"),
        *_optional(pa.float64(), "reward expected"),
        *_required(pa.float64(), "weight"),
        *_required(pa.bool_(), "repair"),
        *_required(CATEGORY, "flags"),
        *_required(TEXT, "siblings parent_sha256 child_sha256"),
        *_optional(pa.float64(), "parent_us child_us choice_probability"),
        *_required(TEXT, "plan kernel reference error"),
        *_required(CATEGORY, "state_family state_arch state_language state_dtype state_size state_bottleneck"),
        *_optional(pa.float64(), "state_fraction_of_bound state_log2_speedup"),
        *_required(pa.float64(), "state_log2_progress"),
        *_optional(pa.float64(), "state_runtime_us"),
        *_optional(CATEGORY, "state_last_outcome"),
        *_required(pa.int32(), "state_step state_stagnation"),
        *_required(CATEGORY, "state_features state_history provenance_format"),
        *_required(pa.int32(), "provenance_importer_version"),
        *_required(CATEGORY, "provenance_file provenance_file_sha256"),
        *_optional(pa.int64(), "provenance_line"),
        *_required(CATEGORY, "techniques moves"),
    ]
)
EDGES = pa.schema(
    [
        *_required(pa.string(), "move rung arch bound family"),
        *_required(EFFECT, "effect"),
        *_required(pa.int64(), "attempts operators sources"),
        *_required(_list_of(pa.string()), "devices failures cures"),
        *_optional(EXCERPT, "excerpt"),
    ]
)
SOURCES = pa.schema(
    [
        *_required(pa.string(), "source format file file_sha256"),
        *_required(pa.int64(), "importer_version transitions measured failures"),
    ]
)
SCHEMAS = {
    "directions": DIRECTIONS,
    "edges": EDGES,
    "sources": SOURCES,
    "strategies": STRATEGIES,
    "transitions": TRANSITIONS,
}
"""By the name of the file."""
BATCH = 20_000
"""Records that are Python objects at one time while a table is written."""


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
    digest = _Digest()
    sink = pa.PythonFile(digest, mode="w")
    straight = plain(table).combine_chunks()
    with pa.ipc.new_stream(sink, straight.schema) as writer:
        for start in range(0, straight.num_rows, BATCH):
            # A slice keeps its parent's buffers and offsets; taking the rows makes the bytes those of the batch alone.
            piece = straight.slice(start, BATCH)
            writer.write_table(piece.take(pa.array(range(piece.num_rows))).combine_chunks())
    return digest.sha256.hexdigest()


class _Digest(io.RawIOBase):
    """A file that feeds a hash."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return len(data)


def table_of(data: bytes) -> pa.Table:
    """The table in a Parquet file.

    ``pyarrow.parquet.read_table`` reads ahead on threads of its own, which hold on to ``data``. Arrow knows that one
    that lets go of it while the interpreter ends aborts the process (apache/arrow#34314, "terminate called without an
    active exception"). One command of about a hundred ended with these words after its work was done; that this was
    the cause is probable, it could not be made to happen again. One thread is no slower here.

    Raises:
        pyarrow.ArrowException: the bytes are no Parquet file.
    """
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
