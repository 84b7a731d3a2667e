from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from artifacts.errors import ArtifactError
from artifacts.memory import files as files_module
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest, manifest_bytes, read_manifest
from artifacts.memory.records import Transition
from artifacts.memory.schemas import SCHEMA_VERSION, SCHEMAS
from artifacts.memory.store import MANIFEST, MemoryStore, split_reference

Build = Callable[..., Memory]
ALL_FILES = (*(f"{file}.parquet" for file in SCHEMAS), MANIFEST)


@pytest.fixture(params=["disk", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    return MemoryStore(str(tmp_path) if request.param == "disk" else f"memory://{uuid4().hex}")


@pytest.fixture(scope="module")
def small(transitions: list[Transition]) -> list[Transition]:
    return transitions[:3]


def test_what_is_published_is_loaded(store: MemoryStore, memory: Memory) -> None:
    version = store.publish(memory)
    loaded = store.load("demo")
    assert loaded.directions == memory.directions
    assert loaded.strategies == memory.strategies
    assert loaded.table.equals(memory.table)
    assert loaded.reference == version.reference


def test_equal_content_is_the_same_version(store: MemoryStore, memory: Memory, build: Build) -> None:
    first = store.publish(memory)
    again = store.publish(build(list(memory.transitions())[::-1]))
    assert again.version == first.version
    assert store.versions("demo") == (first.version,)


def test_other_content_is_another_version_and_its_parent_is_known(
    store: MemoryStore, memory: Memory, build: Build, small: list[Transition]
) -> None:
    first = store.publish(memory)
    second = store.publish(build(small))
    assert second.version != first.version
    assert second.manifest.parent == first.version
    assert store.resolve("demo") == second.version
    assert len(store.load("demo", first.version[:6])) == len(memory)


def test_a_published_memory_is_verified(store: MemoryStore, memory: Memory) -> None:
    version = store.publish(memory)
    assert store.verify("demo").version == version.version


def test_a_flipped_byte_is_seen_wherever_it_is(build: Build, small: list[Transition]) -> None:
    """Each byte of the manifest; of tables, which are held against one hash, each byte of the ends and some between."""
    store = MemoryStore(f"memory://{uuid4().hex}")
    version = store.publish(build(small)).version
    for file in ALL_FILES:
        good = store.files.read("demo", version, file)
        between = range(16, len(good) - 16, 1 if file == MANIFEST else 61)
        for position in (*range(16), *between, *range(len(good) - 16, len(good))):
            bad = bytearray(good)
            bad[position] ^= 1 << (position % 8)
            store.files.write(bytes(bad), "demo", version, file)
            with pytest.raises(ArtifactError):
                store.load("demo", version)
        store.files.write(good, "demo", version, file)
    assert store.verify("demo", version)


def test_every_flipped_byte_of_a_tag_is_seen(store: MemoryStore, build: Build, small: list[Transition]) -> None:
    store.publish(build(small))
    good = store.files.read("demo", "tags", "latest")
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        store.files.write(bytes(bad), "demo", "tags", "latest")
        with pytest.raises(ArtifactError):
            store.load("demo")


@pytest.mark.parametrize("file", ALL_FILES)
def test_a_missing_or_truncated_file_is_named(
    store: MemoryStore, build: Build, small: list[Transition], file: str
) -> None:
    version = store.publish(build(small)).version
    good = store.files.read("demo", version, file)
    store.files.write(good[: len(good) // 2], "demo", version, file)
    with pytest.raises(ArtifactError, match=file):
        store.load("demo", version)
    store.files.remove("demo", version, file)
    with pytest.raises(ArtifactError):
        store.load("demo")


class Crash(BaseException):
    """The process dies here."""


def test_a_publisher_killed_at_any_write_leaves_the_store_as_it_was(
    tmp_path: Path, memory: Memory, build: Build, small: list[Transition], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(str(tmp_path))
    first = store.publish(memory)
    write = files_module.write_durably
    for survivors in range(6):
        left = iter(range(survivors))

        def dying(path: Path, data: bytes, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                path.write_bytes(data[: len(data) // 2])
                raise Crash
            write(path, data)

        with monkeypatch.context() as patched:
            patched.setattr(files_module, "write_durably", dying)
            # A kill runs no clean-up either, so leftovers must do no harm.
            patched.setattr(files_module, "_clear", lambda folder: None)
            with pytest.raises(Crash):
                store.publish(build(small))
        assert store.resolve("demo") == first.version
        assert store.load("demo").table.equals(memory.table)
        store.verify("demo")
    assert store.publish(build(small)).tags == ("latest",)


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_schema_version_is_one_clear_line(version: int) -> None:
    with pytest.raises(ArtifactError) as refused:
        read_manifest(manifest_bytes(Manifest(name="demo", schema_version=version)), "here")
    assert f"schema version {version} is unknown (this release reads {SCHEMA_VERSION})" in refused.value.what
    assert refused.value.fix == "rebuild the memory from its logs"
    assert "\n" not in refused.value.what


def test_columns_that_are_not_those_of_the_schema_are_damage(
    build: Build, small: list[Transition], tmp_path: Path
) -> None:
    store = MemoryStore(str(tmp_path))
    whole = store.publish(build(small)).manifest
    data = {name: store.files.read("demo", whole.version, name) for name in whole.files}
    data["transitions.parquet"] = data["sources.parquet"]
    entries = {**whole.files, "transitions.parquet": whole.files["sources.parquet"]}
    other = replace(whole, files=entries).sealed()
    store.files.write_tree({**data, MANIFEST: manifest_bytes(other)}, MANIFEST, "demo", other.version)
    with pytest.raises(ArtifactError, match=r"transitions\.parquet is damaged: .* schema version"):
        store.load("demo", other.version)


@pytest.mark.parametrize("name", ["", "../up", "A", "tags", "a/b", "x" * 65])
def test_a_name_that_cannot_be_a_folder_is_refused(store: MemoryStore, build: Build, name: str) -> None:
    with pytest.raises(ArtifactError, match="not allowed"):
        store.load(name)


def test_no_tag_can_stand_before_a_version(store: MemoryStore, build: Build, small: list[Transition]) -> None:
    version = store.publish(build(small)).version
    with pytest.raises(ArtifactError, match="looks like a version"):
        store.promote("demo", version, version)


def test_what_is_not_there_is_said_with_what_is(store: MemoryStore, build: Build, small: list[Transition]) -> None:
    store.publish(build(small))
    with pytest.raises(ArtifactError, match="memories there: demo"):
        store.load("other")
    with pytest.raises(ArtifactError, match="neither a version nor a tag"):
        store.load("demo", "prod")


def test_a_reference_is_a_name_and_perhaps_a_version() -> None:
    assert split_reference("demo") == ("demo", None)
    assert split_reference("demo@prod") == ("demo", "prod")
