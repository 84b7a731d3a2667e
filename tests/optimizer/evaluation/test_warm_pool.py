"""Processes started ahead: inside the device lock, replaced when taken, gone when nobody wants them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from artifacts.errors import UnavailableError
from optimizer.evaluation.device_lock import NoDeviceLock
from optimizer.evaluation.worker.warm_pool import WarmPool

WAIT_S = 250.0


class WatchedGate(NoDeviceLock):
    """Knows whether somebody is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.closed = False

    def close(self) -> None:
        self.closed = True

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
        self.factory.started_inside.append(self.factory.device_lock.inside)
        return not self.factory.broken

    def close(self) -> None:
        self.closed.set()


class Factory:
    """Makes processes and remembers them."""

    def __init__(self, *, broken: bool = False) -> None:
        self.device_lock = WatchedGate()
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
def warm_pools(factory: Factory) -> Iterator[WarmPool[Process]]:
    warm_pools = WarmPool(factory, factory.device_lock, most=2)
    yield warm_pools
    warm_pools.close()


def test_nothing_is_started_before_somebody_asks(warm_pools: WarmPool[Process], factory: Factory) -> None:
    assert factory.made == []
    assert warm_pools.take(WAIT_S) is factory.made[0]


def test_what_was_taken_is_replaced_and_never_given_again(warm_pools: WarmPool[Process], factory: Factory) -> None:
    taken = [warm_pools.take(WAIT_S) for _ in range(5)]
    assert len({id(each) for each in taken}) == 5
    assert becomes(lambda: len(factory.made) == 7)


def test_processes_start_inside_the_gate_one_after_the_other(warm_pools: WarmPool[Process], factory: Factory) -> None:
    for _ in range(3):
        warm_pools.take(WAIT_S)
    assert all(factory.started_inside)
    assert becomes(lambda: not factory.device_lock.inside)


def test_who_does_not_wait_takes_what_is_there(warm_pools: WarmPool[Process], factory: Factory) -> None:
    warm_pools.take(WAIT_S)
    assert becomes(lambda: len(factory.made) == 3)
    assert becomes(lambda: warm_pools.take(0.0) is not None)


def test_a_process_that_does_not_start_is_ended_and_nobody_gets_it() -> None:
    factory = Factory(broken=True)
    warm_pools = WarmPool(factory, factory.device_lock)
    assert warm_pools.take(0.3) is None
    assert becomes(lambda: bool(factory.made))
    assert factory.made[0].closed.wait(WAIT_S)
    warm_pools.close()


def test_dismissed_processes_end_and_come_back_on_demand(warm_pools: WarmPool[Process], factory: Factory) -> None:
    warm_pools.take(WAIT_S)
    assert becomes(lambda: len(factory.started_inside) == 3)
    warm_pools.dismiss()
    waiting = factory.made[1:]
    assert all(process.closed.wait(WAIT_S) for process in waiting)
    assert len(factory.made) == 3
    assert warm_pools.take(WAIT_S) not in waiting


def test_closing_ends_those_that_wait(factory: Factory) -> None:
    warm_pools = WarmPool(factory, factory.device_lock)
    mine = warm_pools.take(WAIT_S)
    assert becomes(lambda: len(factory.started_inside) == 3)
    warm_pools.close()
    assert all(process.closed.wait(WAIT_S) for process in factory.made if process is not mine)
    assert warm_pools.take(WAIT_S) is None
    assert factory.device_lock.closed


def test_without_a_server_there_are_none() -> None:
    def gone() -> Process:
        raise UnavailableError("the evaluation process is gone")

    warm_pools = WarmPool(gone, NoDeviceLock())
    assert warm_pools.take(0.2) is None
    warm_pools.close()
