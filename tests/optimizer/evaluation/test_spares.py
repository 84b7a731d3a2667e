"""Processes started ahead: inside the gate, replaced when taken, gone when nobody wants them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from artifacts.errors import UnavailableError
from optimizer.evaluation.cells import SpareCells
from optimizer.evaluation.gate import OpenGate

WAIT_S = 250.0


class WatchedGate(OpenGate):
    """Knows whether somebody is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False

    def enter(self) -> None:
        self.inside = True

    def leave(self) -> None:
        self.inside = False


class Process:
    """Starts when it may."""

    def __init__(self, factory: Factory) -> None:
        self.factory = factory
        self.closed = threading.Event()

    def start(self) -> bool:
        self.factory.started_inside.append(self.factory.gate.inside)
        return not self.factory.broken

    def close(self) -> None:
        self.closed.set()


class Factory:
    """Makes processes and remembers them."""

    def __init__(self, *, broken: bool = False) -> None:
        self.gate = WatchedGate()
        self.broken = broken
        self.made: list[Process] = []
        self.started_inside: list[bool] = []

    def __call__(self) -> Process:
        self.made.append(Process(self))
        return self.made[-1]


def becomes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def spares(factory: Factory) -> Iterator[SpareCells[Process]]:
    spares = SpareCells(factory, factory.gate, most=2)
    yield spares
    spares.close()


def test_nothing_is_started_before_somebody_asks(spares: SpareCells[Process], factory: Factory) -> None:
    assert factory.made == []
    assert spares.take(WAIT_S) is factory.made[0]


def test_what_was_taken_is_replaced_and_never_given_again(spares: SpareCells[Process], factory: Factory) -> None:
    taken = [spares.take(WAIT_S) for _ in range(5)]
    assert len({id(each) for each in taken}) == 5
    assert becomes(lambda: len(factory.made) == 7)


def test_processes_start_inside_the_gate_one_after_the_other(spares: SpareCells[Process], factory: Factory) -> None:
    for _ in range(3):
        spares.take(WAIT_S)
    assert all(factory.started_inside)
    assert becomes(lambda: not factory.gate.inside)


def test_who_does_not_wait_takes_what_is_there(spares: SpareCells[Process], factory: Factory) -> None:
    spares.take(WAIT_S)
    assert becomes(lambda: len(factory.made) == 3)
    assert becomes(lambda: spares.take(0.0) is not None)


def test_a_process_that_does_not_start_is_ended_and_nobody_gets_it() -> None:
    factory = Factory(broken=True)
    spares = SpareCells(factory, factory.gate)
    assert spares.take(0.3) is None
    assert factory.made[0].closed.wait(WAIT_S)
    spares.close()


def test_dismissed_processes_end_and_come_back_on_demand(spares: SpareCells[Process], factory: Factory) -> None:
    spares.take(WAIT_S)
    assert becomes(lambda: len(factory.started_inside) == 3)
    spares.dismiss()
    waiting = factory.made[1:]
    assert all(process.closed.wait(WAIT_S) for process in waiting)
    assert len(factory.made) == 3
    assert spares.take(WAIT_S) not in waiting


def test_closing_ends_those_that_wait(factory: Factory) -> None:
    spares = SpareCells(factory, factory.gate)
    mine = spares.take(WAIT_S)
    assert becomes(lambda: len(factory.started_inside) == 3)
    spares.close()
    assert all(process.closed.wait(WAIT_S) for process in factory.made if process is not mine)
    assert spares.take(WAIT_S) is None


def test_without_a_server_there_are_none() -> None:
    def gone() -> Process:
        raise UnavailableError("the evaluation process is gone")

    spares = SpareCells(gone, OpenGate())
    assert spares.take(0.2) is None
    spares.close()
