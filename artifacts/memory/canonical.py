"""One form for equal content: what a memory's version and the hashes of its rows are taken over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pyarrow as pa

from artifacts.memory.schemas import BATCH, TRANSITIONS


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
