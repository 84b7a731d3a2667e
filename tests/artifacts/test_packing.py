"""A run that is over in two compressed files: everything reads it as before, and nothing that befalls it is silent."""

from __future__ import annotations

import gzip
import os
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.candidate import source_hash
from artifacts.errors import RunLogError
from artifacts.runlog import RunLog

SOURCES = ("x = 1\n", "class ModelNew:\n" + "    pass\n" * 40, "s = 'ü'\n")
FORMS = ("events.jsonl.gz", "candidates.zip")


def make(path: Path, sources: tuple[str, ...] = SOURCES) -> Path:
    with RunLog.create(path, {"name": "one"}) as log:
        for source in sources:
            log.append("note", {"sha256": log.add_candidate(source)})
    return path


def content(path: Path) -> tuple[Any, ...]:
    """All that a reader finds in a run."""
    log = RunLog.open(path)
    return tuple(log.events()), {sha256: log.candidate(sha256) for sha256 in log.candidates()}


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make(tmp_path_factory.mktemp("packed") / "run")
    RunLog.open(path).pack()
    return path


@settings(deadline=None, max_examples=40)
@given(sources=st.lists(st.text(max_size=60), max_size=5))
def test_a_packed_run_reads_as_before_and_unpacks_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, sources: list[str]
) -> None:
    path = make(tmp_path_factory.mktemp("log") / "run", tuple(sources))
    plain, read = files(path), content(path)
    RunLog.open(path).pack()
    assert set(files(path)) == {"manifest.json", *FORMS}
    assert RunLog.is_run(path)
    assert content(path) == read
    RunLog.open(path).unpack()
    assert files(path) == {"events.jsonl": b""} | plain


def test_equal_runs_are_packed_to_equal_bytes(tmp_path: Path) -> None:
    first = make(tmp_path / "first")
    shutil.copytree(first, tmp_path / "second")
    for file in sorted((tmp_path / "second").rglob("*.py"), reverse=True):
        os.utime(file, (0, 0))
    for path in (first, tmp_path / "second"):
        RunLog.open(path).pack()
    once = files(first)
    RunLog.open(first).pack()
    assert once == files(tmp_path / "second") == files(first)


def test_a_packed_run_takes_nothing_more_until_it_is_unpacked(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    log = RunLog.open(path)
    log.pack()
    assert log.add_candidate(SOURCES[0]) == source_hash(SOURCES[0])  # a run that is replayed asks for what is there
    for write in (lambda: log.append("note", {}), lambda: log.add_candidate("new = 1\n")):
        with pytest.raises(RunLogError, match=r"takes nothing more; htam logs unpack .*run first"):
            write()
    log.unpack()
    new = log.add_candidate("new = 1\n")
    log.append("note", {"sha256": new})
    log.pack()
    assert log.candidate(new) == "new = 1\n"
    assert len(list(log.events())) == len(SOURCES) + 1


def test_a_run_that_is_being_written_is_not_packed(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    with RunLog.open(path) as writer:
        writer.append("note", {})
        before = files(path)
        with pytest.raises(RunLogError, match="another process is writing"):
            RunLog.open(path).pack()
    assert files(path) == before


def test_a_candidate_that_was_changed_is_not_packed(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    (path / "candidates" / f"{source_hash(SOURCES[0])}.py").write_text("x = 2\n")
    before = files(path)
    with pytest.raises(RunLogError, match="was changed"):
        RunLog.open(path).pack()
    assert files(path) == before


def test_a_missing_member_is_named(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(packed, tmp_path / "run"))
    missing = source_hash(SOURCES[0])
    with zipfile.ZipFile(packed / FORMS[1]) as whole, zipfile.ZipFile(path / FORMS[1], "w") as part:
        for name in whole.namelist():
            if not name.startswith(missing):
                part.writestr(name, whole.read(name))
    log = RunLog.open(path)
    with pytest.raises(RunLogError, match=rf"lacks candidate {missing[:12]}; restore candidates\.zip"):
        log.candidate(missing)
    assert log.candidate(source_hash(SOURCES[1])) == SOURCES[1]


def test_a_member_with_other_content_is_refused(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(packed, tmp_path / "run"))
    sha256 = source_hash(SOURCES[0])
    with zipfile.ZipFile(path / FORMS[1], "w") as changed:
        changed.writestr(f"{sha256}.py", "x = 2\n")
        changed.writestr("../../outside.py", "x = 3\n")
    with pytest.raises(RunLogError, match=rf"candidates\.zip/{sha256}\.py was changed"):
        RunLog.open(path).candidate(sha256)
    with pytest.raises(RunLogError, match="was changed"):
        RunLog.open(path).unpack()
    assert not list(tmp_path.rglob("outside.py*"))


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=150)
@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_file_reads_as_before_or_is_named_in_one_line(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, name: str, at: float, bits: int, cut: bool
) -> None:
    path = Path(shutil.copytree(packed, tmp_path_factory.mktemp("damaged") / "run"))
    whole = (path / name).read_bytes()
    place = int(at * len(whole))
    (path / name).write_bytes(whole[:place] + (b"" if cut else bytes([whole[place] ^ bits]) + whole[place + 1 :]))
    events, sources = content(packed)
    log = RunLog.open(path)
    for read, wanted in (
        (lambda: tuple(log.events()), events),
        *((partial(log.candidate, sha256), source) for sha256, source in sources.items()),
    ):
        said = answer(read)
        assert said == wanted or (str(path) in str(said) and "\n" not in str(said))


def answer(read: Callable[[], object]) -> object:
    """What a reader gives, or what it says instead."""
    try:
        return read()
    except RunLogError as problem:
        return str(problem)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_packed_in_another_way_is_damage(packed: Path, tmp_path: Path, compression: int) -> None:
    path = Path(shutil.copytree(packed, tmp_path / "run"))
    with zipfile.ZipFile(path / FORMS[1], "w", compression) as other:
        other.writestr(f"{source_hash(SOURCES[0])}.py", SOURCES[0])
    with pytest.raises(RunLogError, match="damaged: compression"):
        RunLog.open(path).candidate(source_hash(SOURCES[0]))


@pytest.mark.parametrize("what", ["pack", "unpack"])
def test_a_run_that_died_while_it_was_packed_or_unpacked_is_whole_and_can_be_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    original = make(tmp_path / "run")
    read = content(original)
    if what == "unpack":
        RunLog.open(original).pack()
    for lived in range(200):
        path = Path(shutil.copytree(original, tmp_path / f"run{lived}"))
        if survived(path, what, lived, monkeypatch):
            break
        assert content(path) == read
        getattr(RunLog.open(path), what)()
        assert content(path) == read
        assert set(FORMS) <= set(files(path)) or what == "unpack"
        RunLog.open(path).unpack()
        assert {name.rpartition(".")[2] for name in files(path)} == {"json", "jsonl", "py"}
    assert 8 <= lived < 199


def survived(path: Path, what: str, lived: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether packing or unpacking ended before it had touched the disk ``lived`` times; then nothing works."""
    left = lived

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def tried(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return call(*given, **named)

        return tried

    with monkeypatch.context() as patched:
        for name in ("unlink", "replace", "rmdir"):
            patched.setattr(Path, name, mortal(getattr(Path, name)))
        patched.setattr("os.fsync", mortal(os.fsync))
        try:
            getattr(RunLog.open(path), what)()
        except KeyboardInterrupt:
            return False
    return True


def test_events_packed_by_gzip_are_read_and_unpacked(tmp_path: Path) -> None:
    path = make(tmp_path / "run")
    read = content(path)
    (path / FORMS[0]).write_bytes(gzip.compress((path / "events.jsonl").read_bytes()))
    (path / "events.jsonl").unlink()
    assert content(path) == read
    before = (path / FORMS[0]).read_bytes()
    RunLog.open(path).pack()
    assert (path / FORMS[0]).read_bytes() == before
    RunLog.open(path).unpack()
    assert content(path) == read
