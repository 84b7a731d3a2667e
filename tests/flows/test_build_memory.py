import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError, HtamError
from artifacts.memory.store import MemoryStore


def build(logs: Path, base: Path, *, runner: str = "threads", work: str = "work", **options: Any) -> str:
    from flows import engine
    from flows.build_memory import build_memory

    settings = engine.EngineSettings(runner=runner, workers=2)
    given = {
        "store": str(base / "store"),
        "name": "team",
        "work": str(base / work),
        "model": "hashing",
        "replay": False,
    }
    reference: str = engine.run(build_memory, settings, logs=[str(logs)], **given | options)
    return reference


def rebuild(logs: Path, base: Path) -> dict[str, str]:
    from flows import engine
    from flows.build_memory import rebuild_on_new_logs

    given = {"store": str(base / "store"), "name": "team", "work": str(base / "work"), "model": "hashing"}
    result: dict[str, str] = engine.run(rebuild_on_new_logs, engine.EngineSettings(), logs=[str(logs)], **given)
    return result


def bytes_of(base: Path, reference: str) -> dict[str, str]:
    folder = base / "store" / Path(*reference.split("@"))
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    return {name: digest for name, digest in files.items() if name != "manifest.json"}


def test_a_build_publishes_what_its_logs_hold(runs: Path, tmp_path: Path) -> None:
    reference = build(runs, tmp_path)
    memory = MemoryStore(str(tmp_path / "store")).load("team")
    assert memory.reference == reference
    assert len(memory) == 32


def test_the_same_logs_give_the_same_version_whatever_is_remembered(runs: Path, tmp_path: Path) -> None:
    assert build(runs, tmp_path) == build(runs, tmp_path) == build(runs, tmp_path, work="fresh")


def test_two_worker_processes_give_the_bytes_of_a_local_build(runs: Path, tmp_path: Path) -> None:
    local = build(runs, tmp_path / "local")
    spread = build(runs, tmp_path / "dask", runner="dask")
    assert spread == local
    assert bytes_of(tmp_path / "dask", spread) == bytes_of(tmp_path / "local", local)


def test_a_build_that_broke_off_goes_on_with_what_was_read(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builder.describe.logs
    from flows import stages

    def broken(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(stages, "link", broken)
        with pytest.raises(RuntimeError, match="power cut"):
            build(runs, tmp_path)
    monkeypatch.setattr(builder.describe.logs, "read", broken)
    assert build(runs, tmp_path).startswith("team@")


def test_a_folder_without_logs_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no log")
    with pytest.raises(BadInputError, match="no log"):
        build(tmp_path, tmp_path)


def test_new_logs_become_a_new_version_and_without_them_nothing_is_published(
    runs: Path, tmp_path: Path, add_run: Callable[..., Path]
) -> None:
    first = rebuild(runs, tmp_path)
    again = rebuild(runs, tmp_path)
    assert first["built"] == f"team@{first['version']}"
    assert (again["version"], again["built"]) == (first["version"], "")
    assert "no new logs" in again["reason"]
    (page,) = (tmp_path / "work/reports").glob("*.html")
    assert first["built"] in page.read_text()
    add_run(runs / "gamma", "gamma")
    second = rebuild(runs, tmp_path)
    assert second["version"] != first["version"]
    assert MemoryStore(str(tmp_path / "store")).tagged("team", "latest") == second["version"]


def test_a_version_with_worse_replay_is_kept_and_not_promoted(
    runs: Path, tmp_path: Path, add_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import build_memory as steps

    def worse(*_: object) -> bool:
        raise HtamError("it ranks directions worse")

    first = rebuild(runs, tmp_path)
    add_run(runs / "gamma", "gamma")
    monkeypatch.setattr(steps, "keeps_up", worse)
    second = rebuild(runs, tmp_path)
    store = MemoryStore(str(tmp_path / "store"))
    assert store.tagged("team", "latest") == first["version"]
    assert store.tagged("team", "candidate") == second["built"].split("@")[1]
    assert "it ranks directions worse" in second["reason"]
    assert rebuild(runs, tmp_path)["built"] == ""


def test_an_empty_inbox_is_no_error_and_its_first_log_is_a_version(
    tmp_path: Path, add_run: Callable[..., Path]
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    empty = rebuild(inbox, tmp_path)
    assert (empty["version"], empty["built"]) == ("", "")
    assert "no new logs" in empty["reason"]
    add_run(inbox / "alpha", "alpha")
    assert rebuild(inbox, tmp_path)["built"].startswith("team@")


def test_an_empty_inbox_beside_a_full_one_stops_nothing(runs: Path, tmp_path: Path) -> None:
    from flows import engine
    from flows.build_memory import rebuild_on_new_logs

    (tmp_path / "inbox").mkdir()
    given = {"store": str(tmp_path / "store"), "name": "team", "work": str(tmp_path / "work"), "model": "hashing"}
    logs = [str(tmp_path / "inbox"), str(runs)]
    result = engine.run(rebuild_on_new_logs, engine.EngineSettings(), logs=logs, **given)
    assert result["built"].startswith("team@")


def test_a_log_folder_that_does_not_exist_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        rebuild(tmp_path / "nowhere", tmp_path)


def test_two_builds_at_once_of_one_memory_in_one_work_folder_lose_nothing(
    runs: Path, tmp_path: Path, add_run: Callable[..., Path]
) -> None:
    more = add_run(tmp_path / "more" / "gamma", "gamma")
    words = ["--name", "team", "--model", "hashing", "--force", "--logs", str(runs), "--logs", str(more)]
    words += ["--store", str(tmp_path / "store"), "--work", str(tmp_path / "work")]
    command = [sys.executable, "-P", "-m", "pipeline", "memory", "build", *words]
    mine = []
    with (tmp_path / "printed").open("w+") as out, subprocess.Popen(command, stdout=out) as other:
        try:
            while other.poll() is None:
                mine.append(build(runs, tmp_path, replay=True, force=True))
        finally:
            other.kill()
    assert other.returncode == 0
    printed = (tmp_path / "printed").read_text().split()[-1]
    store = MemoryStore(str(tmp_path / "store"))
    assert len(set(mine)) == 1
    assert [len(store.load(*reference.split("@"))) for reference in (mine[0], printed)] == [32, 48]
    assert f"team@{store.tagged('team', 'latest')}" in (mine[0], printed)
    assert not list((tmp_path / "store").rglob(".tmp-*"))
