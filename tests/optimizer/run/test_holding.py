"""A run holds its memory from its start until it is finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.errors import ArtifactError
from artifacts.memory.htg import Memory
from artifacts.memory.retention import gc
from artifacts.memory.store import MemoryStore
from artifacts.runlog import RunLog
from optimizer.evaluation.job import EvaluationSettings
from optimizer.run.manifest import RunManifest, Selection
from optimizer.run.opening import arm_of, create_run, hold_memory, release_memory
from optimizer.search.settings import SearchSettings


@pytest.fixture
def store(memory: Memory, tmp_path: Path) -> MemoryStore:
    return MemoryStore(str(tmp_path / "store"))


def published(store: MemoryStore, memory: Memory) -> str:
    """Publish a version that no tag holds any more, because a later one has it."""
    first = store.publish(memory)
    store.publish(replace(memory, table=memory.table.slice(0, len(memory) - 1)))
    return first.version


def manifest_of(store: str, memory: Memory, version: str) -> RunManifest:
    return RunManifest(
        run_id="r",
        arm="htam",
        llm="files",
        model="files",
        evaluator="files",
        backend="cpu",
        device="cpu",
        language=Language.CPP,
        memory=f"{memory.manifest.name}@{version}",
        store=store,
        seed=1,
        tasks=(),
        search=SearchSettings(),
        selection=Selection(),
        evaluation=EvaluationSettings(),
    )


def test_a_run_that_has_begun_keeps_its_memory_and_a_finished_one_lets_it_go(
    store: MemoryStore, memory: Memory, tmp_path: Path
) -> None:
    version, name = published(store, memory), memory.manifest.name
    manifest = manifest_of(str(tmp_path / "store"), memory, version)
    create_run(tmp_path / "run", manifest, ()).close()
    assert gc(store, name).removed == ()
    release_memory(tmp_path / "run", manifest)
    assert gc(store, name).removed == (version,)


def test_runs_of_one_name_in_two_places_hold_on_their_own(store: MemoryStore, memory: Memory, tmp_path: Path) -> None:
    manifest = manifest_of(str(tmp_path / "store"), memory, published(store, memory))
    hold_memory(tmp_path / "a" / "r", manifest)
    hold_memory(tmp_path / "b" / "r", manifest)
    release_memory(tmp_path / "a" / "r", manifest)
    assert gc(store, memory.manifest.name).removed == ()


def test_a_run_opened_elsewhere_says_where_its_memory_is_looked_for(
    store: MemoryStore, memory: Memory, tmp_path: Path
) -> None:
    manifest = manifest_of("memories/of/mine", memory, published(store, memory))
    with pytest.raises(ArtifactError, match="in memories/of/mine, which is not here; name its place with --store"):
        arm_of(manifest)


@pytest.mark.parametrize("run_id", ["Ünruly name!", "..", "x" * 300, "run"])
def test_any_folder_name_makes_a_pin(run_id: str, store: MemoryStore, memory: Memory, tmp_path: Path) -> None:
    manifest = manifest_of(str(tmp_path / "store"), memory, published(store, memory))
    assert hold_memory(tmp_path, replace(manifest, run_id=run_id))
    assert gc(store, memory.manifest.name).removed == ()


def test_a_store_that_cannot_be_written_to_does_not_stop_a_run(
    store: MemoryStore, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(str(tmp_path / "store"), memory, published(store, memory))

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("optimizer.run.opening.pin", refuse)
    assert not hold_memory(tmp_path / "run", manifest)
    create_run(tmp_path / "run", manifest, ()).close()
    assert RunLog.is_run(tmp_path / "run")


def test_a_run_without_memory_holds_nothing(memory: Memory, tmp_path: Path) -> None:
    manifest = replace(manifest_of(str(tmp_path / "store"), memory, "x"), memory="", arm="feedback")
    assert not hold_memory(tmp_path / "run", manifest)
    release_memory(tmp_path / "run", manifest)
    assert not (tmp_path / "store").exists()
