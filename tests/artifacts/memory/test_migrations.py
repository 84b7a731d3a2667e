"""Memories that an older release wrote are read through migrations, tables and manifest alike."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.errors import ArtifactError
from artifacts.memory import tables
from artifacts.memory.canonical import canonical, content_hash
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import FileEntry, manifest_bytes
from artifacts.memory.migrations import SCHEMA_VERSION, Migration, added, dropped, renamed
from artifacts.memory.records import Transition
from artifacts.memory.schemas import TRANSITIONS
from artifacts.memory.store import MANIFEST, MemoryStore

Build = Callable[..., Memory]


@pytest.fixture(scope="module")
def small(transitions: list[Transition]) -> list[Transition]:
    return transitions[:3]


def written(store: MemoryStore, memory: Memory, parts: dict[str, pa.Table], schema_version: int) -> str:
    """Put a version into the store as a release with other columns would have written it."""
    data, entries = {}, {}
    for name, table in parts.items():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        body = data[f"{name}.parquet"] = sink.getvalue()
        digest, content = hashlib.sha256(body).hexdigest(), content_hash(table)
        entries[f"{name}.parquet"] = FileEntry(sha256=digest, content=content, size=len(body), rows=table.num_rows)
    manifest = replace(memory.manifest, files=entries, schema_version=schema_version).sealed()
    store.files.write_tree({**data, MANIFEST: manifest_bytes(manifest)}, MANIFEST, "demo", manifest.version)
    return manifest.version


def parts_of(memory: Memory) -> dict[str, pa.Table]:
    return {
        "directions": tables.direction_rows(memory.directions),
        "sources": tables.source_rows(memory.table),
        "strategies": tables.strategy_rows(memory.strategies),
        "transitions": canonical(memory.table),
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_older_table_with_missing_renamed_and_needless_columns_is_lifted(
    build: Build, small: list[Transition], tmp_path: Path, data: st.DataObject
) -> None:
    memory = build(small)
    parts, steps = parts_of(memory), {}
    for name, table in list(parts.items()):
        optional = [field for field in table.schema if field.nullable]
        gone = data.draw(st.lists(st.sampled_from(optional), unique_by=lambda field: field.name)) if optional else []
        left = [column for column in table.column_names if column not in {field.name for field in gone}]
        other = data.draw(st.lists(st.sampled_from(left), unique=True))
        old = table.drop_columns([field.name for field in gone])
        old = old.rename_columns([f"old_{column}" if column in other else column for column in old.column_names])
        old = old.select(data.draw(st.permutations(old.column_names)))
        old = old.append_column("needless", pa.array(["x"] * old.num_rows))
        steps[name] = (
            *(renamed(f"old_{column}", column) for column in other),
            *(added(field.name, field.type, None) for field in gone),
            dropped("needless"),
        )
        parts[name] = old
        memory = without(memory, [field.name for field in gone]) if name == "transitions" else memory
    store = MemoryStore(str(tmp_path / hashlib.sha256(repr(steps).encode()).hexdigest()), (Migration(tables=steps),))
    version = written(store, memory, parts, schema_version=1)
    loaded = store.load("demo", version)
    assert loaded.table.equals(memory.table)
    assert loaded.directions == memory.directions
    assert loaded.strategies == memory.strategies
    assert store.verify("demo", version).version == version


def without(memory: Memory, names: list[str], value: str | None = None) -> Memory:
    """``memory`` as it is when nobody knows what these columns held."""
    table = memory.table
    for name in names:
        field, place = TRANSITIONS.field(name), table.schema.get_field_index(name)
        table = table.set_column(place, field, pa.array([value] * table.num_rows, field.type))
    return replace(memory, table=canonical(table))


def test_steps_run_in_order_from_the_version_that_was_written(
    build: Build, small: list[Transition], tmp_path: Path
) -> None:
    memory = build(small)
    chain = (
        Migration(tables={"transitions": (renamed("first", "second"),)}),
        Migration(tables={"transitions": (renamed("second", "plan"),)}),
    )
    store = MemoryStore(str(tmp_path), chain)
    for schema_version, name in ((1, "first"), (2, "second"), (3, "plan")):
        parts = parts_of(memory)
        parts["transitions"] = renamed("plan", name)(parts["transitions"])
        version = written(store, memory, parts, schema_version)
        assert store.load("demo", version).table.equals(memory.table)


def test_a_lifted_memory_is_published_in_the_newest_schema(
    build: Build, small: list[Transition], tmp_path: Path
) -> None:
    memory = build(small)
    parts = parts_of(memory)
    parts["transitions"] = renamed("plan", "text")(parts["transitions"])
    older = MemoryStore(str(tmp_path / "old"), (Migration(tables={"transitions": (renamed("text", "plan"),)}),))
    loaded = older.load("demo", written(older, memory, parts, schema_version=1))
    new = MemoryStore(str(tmp_path / "new"))
    assert new.publish(loaded).version == new.publish(memory).version


def test_a_memory_from_before_kernels_were_kept_is_read(build: Build, small: list[Transition], tmp_path: Path) -> None:
    memory = build(small)
    parts = parts_of(memory)
    parts["transitions"] = parts["transitions"].drop_columns(["kernel", "reference"])
    store = MemoryStore(str(tmp_path))
    loaded = store.load("demo", written(store, memory, parts, schema_version=1))
    assert set(loaded.table["kernel"].to_pylist()) == {""}
    assert loaded.table.equals(without(memory, ["kernel", "reference"], "").table)


def test_a_step_that_was_forgotten_is_one_clear_line(build: Build, small: list[Transition], tmp_path: Path) -> None:
    memory = build(small)
    parts = parts_of(memory)
    parts["transitions"] = parts["transitions"].drop_columns(["plan"])
    store = MemoryStore(str(tmp_path), (Migration(),))
    version = written(store, memory, parts, schema_version=1)
    with pytest.raises(ArtifactError, match=r"transitions\.parquet is damaged: .* schema version 1"):
        store.load("demo", version)


def test_a_newer_schema_is_one_clear_line(build: Build, small: list[Transition], tmp_path: Path) -> None:
    memory = build(small)
    store = MemoryStore(str(tmp_path))
    version = written(store, memory, parts_of(memory), schema_version=7)
    with pytest.raises(ArtifactError) as refused:
        store.load("demo", version)
    assert f"schema version 7 is unknown (this release reads 1 to {SCHEMA_VERSION})" in refused.value.what
    assert "upgrade" in refused.value.fix
    assert "\n" not in refused.value.what
