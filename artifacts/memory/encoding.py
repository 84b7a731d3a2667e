"""A memory as the Parquet files of its version."""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.memory import schemas, tables
from artifacts.memory.canonical import canonical, content_hash
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import FileEntry

SCHEMAS = {
    "directions": schemas.DIRECTIONS,
    "sources": schemas.SOURCES,
    "strategies": schemas.STRATEGIES,
    "transitions": schemas.TRANSITIONS,
}
ROW_GROUP = 250_000


def encoded(memory: Memory) -> tuple[dict[str, bytes], dict[str, FileEntry]]:
    """Parquet files of a memory and their entries in the manifest."""
    parts = {
        "directions": tables.direction_rows(memory.directions),
        "sources": tables.source_rows(memory.table),
        "strategies": tables.strategy_rows(memory.strategies),
        "transitions": canonical(memory.table),
    }
    data = {f"{name}.parquet": _parquet(table) for name, table in parts.items()}
    entries = {
        f"{name}.parquet": FileEntry(
            sha256=hashlib.sha256(data[f"{name}.parquet"]).hexdigest(),
            content=content_hash(table),
            size=len(data[f"{name}.parquet"]),
            rows=table.num_rows,
        )
        for name, table in parts.items()
    }
    return data, entries


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, row_group_size=ROW_GROUP)
    return sink.getvalue()
