"""Who may use a device: many beside each other, one who times alone, and nobody starves or is left locked out."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.evaluation.gate import DeviceGate, Gate, OpenGate

KEY = "GPU-0"


HOLDER = """
import pathlib, sys, time
from optimizer.evaluation.gate import DeviceGate
with DeviceGate("GPU-0", folder=pathlib.Path(sys.argv[1])).alone():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Callable[..., DeviceGate]]:
    made: list[DeviceGate] = []

    def make(waiting: Callable[[bool], None] | None = None) -> DeviceGate:
        made.append(DeviceGate(KEY, waiting, folder=tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def gates(gate: Callable[..., DeviceGate]) -> list[DeviceGate]:
    return [gate() for _ in range(3)]


def started(work: threading.Thread) -> threading.Thread:
    work.daemon = True
    work.start()
    return work


def waits(thread: threading.Thread) -> bool:
    thread.join(0.2)
    return thread.is_alive()


def time_alone(gate: Gate, log: list[str], name: str) -> None:
    with gate.alone():
        log.append(name)


def test_several_use_a_device_side_by_side(gates: list[DeviceGate]) -> None:
    for gate in gates:
        gate.enter()
    assert [gate.waited_s for gate in gates] == [0.0, 0.0, 0.0]


def test_who_times_waits_for_those_inside(gates: list[DeviceGate]) -> None:
    inside, timer, _ = gates
    inside.enter()
    log: list[str] = []
    thread = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert waits(thread)
    inside.leave()
    thread.join(30)
    assert log == ["timed"]
    assert timer.waited_s > 0


def test_those_inside_wait_while_one_times(gates: list[DeviceGate]) -> None:
    timer, other, _ = gates
    with timer.alone():
        thread = started(threading.Thread(target=other.enter))
        assert waits(thread)
    thread.join(30)
    assert not thread.is_alive()


def test_a_newcomer_does_not_overtake_one_who_waits_to_time(gates: list[DeviceGate]) -> None:
    inside, timer, newcomer = gates
    inside.enter()
    log: list[str] = []
    first = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert waits(first)
    second = started(threading.Thread(target=lambda: (newcomer.enter(), log.append("newcomer"))))
    assert waits(second)
    inside.leave()
    second.join(30)
    first.join(30)
    assert log == ["timed", "newcomer"]


def test_giving_way_lets_the_timer_in_and_costs_nothing_when_nobody_waits(gates: list[DeviceGate]) -> None:
    inside, timer, _ = gates
    inside.enter()
    inside.give_way()
    assert inside.waited_s == 0.0
    log: list[str] = []
    thread = started(threading.Thread(target=time_alone, args=(timer, log, "timed")))
    assert waits(thread)
    inside.give_way()
    assert log == ["timed"]
    thread.join(30)


def test_the_holder_is_inside_again_after_a_block_that_raises(gates: list[DeviceGate]) -> None:
    inside, timer, _ = gates
    inside.enter()
    with pytest.raises(ValueError, match="inside"), inside.alone():
        raise ValueError("inside")
    thread = started(threading.Thread(target=time_alone, args=(timer, [], "timed")))
    assert waits(thread)
    inside.leave()
    thread.join(30)


def test_waits_are_announced_before_and_after(gate: Callable[..., DeviceGate]) -> None:
    seen: list[bool] = []
    timer, other = gate(), gate(seen.append)
    with timer.alone():
        thread = started(threading.Thread(target=other.enter))
        assert waits(thread)
        assert seen == [True]
    thread.join(30)
    assert seen == [True, False]


def test_a_killed_process_releases_what_it_held(gate: Callable[..., DeviceGate], tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        thread = started(threading.Thread(target=gate().enter))
        assert waits(thread)
        holder.kill()
    thread.join(30)
    assert not thread.is_alive()


def test_an_open_gate_lets_everybody_through() -> None:
    gate: Gate = OpenGate()
    gate.enter()
    gate.give_way()
    with gate.alone():
        gate.leave()
    assert gate.waited_s == 0.0
