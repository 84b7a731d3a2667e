from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import RunLogError
from artifacts.runlog import RunLog

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_an_appended_event_is_read_back_in_order(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", {"name": "one"}) as log:
        log.append("note", {"text": "a"})
        log.append("answer", {"text": "b"}, key="k")
    events = list(RunLog.open(tmp_path / "run").events())
    assert [(event.seq, event.kind, event.key) for event in events] == [(0, "note", ""), (1, "answer", "k")]


@settings(deadline=None, max_examples=40)
@given(payload=st.dictionaries(st.text(max_size=8), json_values, max_size=4), key=st.text(max_size=12))
def test_any_json_payload_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, payload: dict[str, object], key: str
) -> None:
    with RunLog.create(tmp_path_factory.mktemp("log") / "run", {}) as log:
        log.append("note", payload, key=key)
        (event,) = log.events()
    assert (event.payload, event.key) == (payload, key)


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(1, 200))
def test_a_log_cut_at_any_byte_keeps_every_whole_event_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "run"
    with RunLog.create(path, {}) as log:
        for number in range(3):
            log.append("note", {"number": number})
    whole = (path / "events.jsonl").read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    (path / "events.jsonl").write_bytes(kept)
    with RunLog.open(path) as log:
        log.append("note", {"number": "next"})
        numbers = [event.payload["number"] for event in log.events()]
    assert numbers == [*range(kept.count(b"\n")), "next"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", {}) as log:
        log.append("note", {})
        log.append("note", {})
    path = tmp_path / "run" / "events.jsonl"
    path.write_bytes(b"{broken\n" + path.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(RunLogError, match=r"events\.jsonl:1 is damaged"):
        list(RunLog.open(tmp_path / "run").events())


def test_a_missing_event_is_noticed(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", {}) as log:
        for _ in range(3):
            log.append("note", {})
    path = tmp_path / "run" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(RunLogError, match="sequence number 2 where 1 belongs"):
        list(RunLog.open(tmp_path / "run").events())


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", {}) as first:
        first.append("note", {})
        with pytest.raises(RunLogError, match="another process is writing"):
            RunLog.open(tmp_path / "run").append("note", {})


def test_a_directory_with_other_files_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunLogError, match="is not empty"):
        RunLog.create(tmp_path, {})


def test_an_unknown_schema_version_is_refused(tmp_path: Path) -> None:
    RunLog.create(tmp_path / "run", {})
    (tmp_path / "run" / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(RunLogError, match="schema version 99"):
        RunLog.open(tmp_path / "run")


def test_a_candidate_is_found_under_its_identity(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run", {})
    assert log.candidate(log.add_candidate("x = 1  \r\n")) == "x = 1\n"


def test_a_changed_candidate_is_refused(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run", {})
    sha256 = log.add_candidate("x = 1\n")
    (tmp_path / "run" / "candidates" / f"{sha256}.py").write_text("x = 2\n")
    with pytest.raises(RunLogError, match="was changed"):
        log.candidate(sha256)


def test_a_candidate_that_a_power_cut_emptied_is_written_again(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path / "run", {})
    sha256 = log.add_candidate("x = 1\n")
    (tmp_path / "run" / "candidates" / f"{sha256}.py").write_text("")
    log.add_candidate("x = 1\n")
    assert log.candidate(sha256) == "x = 1\n"


def test_what_was_paid_for_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog.create(tmp_path / "run", {})
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append("sync"))
    for kind in ("choice", "answer", "candidate", "measurement", "step"):
        log.append(kind, {})
        synced.append(kind)
    log.close()
    assert synced == ["choice", "sync", "answer", "candidate", "sync", "measurement", "step"]
