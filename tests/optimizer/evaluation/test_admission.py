"""What a candidate's process waits for before it shuts its doors, and which devices it sees."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.sandbox import main
from optimizer.evaluation.sandbox.channel import Channel, channel_pair
from optimizer.evaluation.sandbox.enter import device_minors, hide_other_devices, show_device

POLICY = {"do": "policy", "programs": False, "memory_gib": 1.0, "cpu_s": 1.0}


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def admitted(ends: tuple[Channel, Channel], on_device: bool, *messages: dict[str, Any]) -> dict[str, Any]:
    for message in messages:
        ends[0].send(message)
    return main.admission(ends[1], on_device)


def test_without_a_device_the_policy_is_enough(ends: tuple[Channel, Channel]) -> None:
    assert admitted(ends, False, POLICY) == POLICY


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_with_a_device_policy_and_start_come_in_any_order(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    monkeypatch.setattr(main, "start_device", lambda: None)
    messages = ({"do": "start"}, POLICY)
    assert admitted(ends, True, *(messages[index] for index in order)) == POLICY
    assert ends[0].receive(10)[0] == {"started": True}


def test_a_device_that_does_not_start_is_no_fault_of_the_candidate(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(main, "start_device", broken)
    admitted(ends, True, {"do": "start"}, POLICY)
    reply = ends[0].receive(10)[0]
    assert reply["error"] == "infra_error"
    assert "out of memory" in reply["text"]


def test_nothing_is_admitted_before_the_device_has_started(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "start_device", lambda: None)
    waiting = threading.Thread(target=main.admission, args=(ends[1], True), daemon=True)
    waiting.start()
    ends[0].send(POLICY)
    waiting.join(0.2)
    assert waiting.is_alive()
    ends[0].send({"do": "start"})
    waiting.join()


def test_a_process_is_shown_one_device_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS"):
        monkeypatch.setenv(name, "before")
    show_device("GPU-1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    show_device(None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def driver(folder: Path) -> Path:
    for minor, uuid in enumerate(("GPU-aa", "GPU-bb")):
        path = folder / f"0000:0{minor}:00.0" / "information"
        path.parent.mkdir()
        path.write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n", encoding="utf-8")
    return folder


def test_files_of_devices_are_known_by_identity(tmp_path: Path) -> None:
    assert device_minors(driver(tmp_path)) == {"GPU-aa": 0, "GPU-bb": 1}


def test_a_driver_that_does_not_say_names_no_devices(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "information").write_text("GPU UUID: ??\n", encoding="utf-8")
    assert device_minors(tmp_path) == {}
    assert device_minors(tmp_path / "absent") == {}


def test_an_unknown_device_hides_nothing(tmp_path: Path) -> None:
    hide_other_devices("GPU-cc", driver(tmp_path))
    hide_other_devices("GPU-aa", tmp_path / "absent")
