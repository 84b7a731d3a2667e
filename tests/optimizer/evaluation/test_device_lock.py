"""Who may use a device: many beside each other, one who times alone, and nobody starves or is left locked out."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from optimizer.evaluation.device_lock import DeviceLock, NoDeviceLock, SharedDeviceLock, building, measuring

KEY = "GPU-0"


HOLDER = """
import pathlib, sys, time
from optimizer.evaluation.device_lock import SharedDeviceLock
with SharedDeviceLock("GPU-0", folder=pathlib.Path(sys.argv[1])).alone():
    print("held", flush=True)
    time.sleep(600)
"""


class Watched(SharedDeviceLock):
    """Knows when it begins to wait."""

    def __init__(self, folder: Path) -> None:
        self.said: list[bool] = []
        super().__init__(KEY, self.said.append, folder=folder)

    def waits(self) -> bool:
        """True as soon as it has begun to wait; a wait to time has begun once it keeps newcomers out."""
        return becomes(lambda: self.said == [True])

    def waits_to_time(self) -> bool:
        """See :meth:`waits`."""
        with Path(self._turn.name).open() as turn:
            return self.waits() and becomes(lambda: _held(turn))


def _held(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def becomes(condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` comes true, however slow the machine is."""
    end = time.monotonic() + 200
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def device_lock(tmp_path: Path) -> Iterator[Callable[[], Watched]]:
    made: list[Watched] = []

    def make() -> Watched:
        made.append(Watched(tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def gates(device_lock: Callable[[], Watched]) -> list[Watched]:
    return [device_lock() for _ in range(3)]


def started(work: threading.Thread) -> threading.Thread:
    work.daemon = True
    work.start()
    return work


def time_alone(device_lock: DeviceLock, log: list[str], name: str) -> None:
    with device_lock.alone():
        log.append(name)


def test_several_use_a_device_side_by_side(gates: list[Watched]) -> None:
    for device_lock in gates:
        device_lock.enter()
    assert [device_lock.waited_s for device_lock in gates] == [0.0, 0.0, 0.0]


def test_who_times_waits_for_those_inside(gates: list[Watched]) -> None:
    inside, timer, _ = gates
    inside.enter()
    log: list[str] = []
    thread = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert timer.waits_to_time()
    inside.leave()
    thread.join()
    assert log == ["timed"]
    assert timer.waited_s > 0


def test_those_inside_wait_while_one_times(gates: list[Watched]) -> None:
    timer, other, _ = gates
    with timer.alone():
        thread = started(threading.Thread(target=other.enter))
        assert other.waits()
    thread.join()


def test_a_newcomer_does_not_overtake_one_who_waits_to_time(gates: list[Watched]) -> None:
    inside, timer, newcomer = gates
    inside.enter()
    log: list[str] = []
    first = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert timer.waits_to_time()
    second = started(threading.Thread(target=lambda: (newcomer.enter(), log.append("newcomer"))))
    assert newcomer.waits()
    inside.leave()
    second.join()
    first.join()
    assert log == ["timed", "newcomer"]


def test_giving_way_lets_the_timer_in_and_costs_nothing_when_nobody_waits(gates: list[Watched]) -> None:
    inside, timer, _ = gates
    inside.enter()
    inside.give_way()
    assert inside.waited_s == 0.0
    log: list[str] = []
    thread = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert timer.waits_to_time()
    inside.give_way()
    assert log == ["timed"]
    thread.join()


def test_the_holder_is_inside_again_after_a_block_that_raises(gates: list[Watched]) -> None:
    inside, timer, _ = gates
    inside.enter()
    with pytest.raises(ValueError, match="inside"), inside.alone():
        raise ValueError("inside")
    thread = started(threading.Thread(target=time_alone, args=(timer, [], "timed")))
    assert timer.waits_to_time()
    inside.leave()
    thread.join()


def test_waits_are_announced_before_and_after(device_lock: Callable[[], Watched]) -> None:
    timer, other = device_lock(), device_lock()
    with timer.alone():
        thread = started(threading.Thread(target=other.enter))
        assert other.waits()
    thread.join()
    assert other.said == [True, False]


def test_a_killed_process_releases_what_it_held(device_lock: Callable[[], Watched], tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        waiting = device_lock()
        thread = started(threading.Thread(target=waiting.enter))
        assert waiting.waits()
        holder.kill()
    thread.join()


def test_an_open_gate_lets_everybody_through() -> None:
    device_lock: DeviceLock = NoDeviceLock()
    device_lock.enter()
    device_lock.give_way()
    with device_lock.alone():
        device_lock.leave()
    assert device_lock.waited_s == 0.0


def test_who_is_alone_for_long_lets_others_in_and_is_alone_again(
    gates: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, other, _ = gates
    inside = threading.Event()
    with timer.alone():
        newcomer = started(threading.Thread(target=lambda: (other.enter(), inside.set(), other.leave())))
        assert other.waits()
        monkeypatch.setattr("optimizer.evaluation.device_lock.STRETCH_S", float("inf"))
        timer.breathe()
        assert not inside.is_set()
        monkeypatch.setattr("optimizer.evaluation.device_lock.STRETCH_S", 0.0)
        timer.breathe()
        newcomer.join()
        assert inside.is_set()
        with Path(timer._use.name).open() as use:
            assert _held(use)


BUILDER = """
from optimizer.evaluation.device_lock import building
print("begun", flush=True)
with building():
    print("built", flush=True)
"""


def test_other_processes_do_not_build_while_one_measures_on_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the lock files lie
    monkeypatch.setattr(tempfile, "tempdir", None)
    with building(), building():  # builds are side by side
        pass
    with measuring():
        builder = subprocess.Popen([sys.executable, "-c", BUILDER], stdout=subprocess.PIPE, text=True)
        assert builder.stdout is not None
        assert builder.stdout.readline() == "begun\n"
        with pytest.raises(subprocess.TimeoutExpired):
            builder.wait(0.5)
    assert builder.communicate(timeout=100) == ("built\n", None)
