"""Compilers queue: so many at a time, the oldest build first; nobody waits for headers or for calls of no use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from optimizer.evaluation.build.builder import LocalBuilder
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import URGENT, CompilerSlots, Completed, ProcessRunner, Stop
from optimizer.evaluation.build.headers import WORTH, PrecompiledHeaders
from optimizer.evaluation.build.request import Attempt, BuildRequest, SourceFile


def until(condition: Callable[[], bool]) -> None:
    """Wait for what comes, however slow the machine is."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_oldest_build_goes_first_and_urgent_work_before_it() -> None:
    slots = CompilerSlots(1)
    old, young = slots.ticket(), slots.ticket()
    log: list[int] = []

    def work(ticket: int) -> None:
        with slots.slot(ticket):
            log.append(ticket)

    threads = [threading.Thread(target=work, args=(ticket,)) for ticket in (young, old, URGENT)]
    with slots.slot(old):
        for thread in threads:
            thread.start()
        until(lambda: len(slots._waiting) == 3)
        assert log == []
    for thread in threads:
        thread.join()
    assert log == [URGENT, old, young]


def test_what_gets_cheaper_lets_everything_else_go_first() -> None:
    slots = CompilerSlots(1)
    old, young = slots.ticket(), slots.ticket()
    log: list[str] = []

    def work(name: str, ticket: int, later: bool) -> None:
        with slots.slot(ticket, gets_cheaper=later):
            log.append(name)

    threads = [
        threading.Thread(target=work, args=order)
        for order in (("old, cheaper later", old, True), ("young", young, False))
    ]
    with slots.slot(URGENT):
        for thread in threads:
            thread.start()
        until(lambda: len(slots._waiting) == 2)
    for thread in threads:
        thread.join()
    assert log == ["young", "old, cheaper later"]


def test_no_more_run_than_there_are_slots() -> None:
    slots = CompilerSlots(3)
    running, most = 0, 0
    lock, three = threading.Lock(), threading.Barrier(3)

    def work() -> None:
        nonlocal running, most
        with slots.slot(slots.ticket()):
            with lock:
                running += 1
                most = max(most, running)
            three.wait(600)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_a_command_that_is_of_no_use_any_more_ends_early(tmp_path: Path) -> None:
    stop = threading.Event()

    def stopped() -> None:
        until((tmp_path / "begun").exists)
        stop.set()

    threading.Thread(target=stopped).start()
    done = ProcessRunner().run(["sh", "-c", "echo begun; touch begun; exec sleep 6000"], tmp_path, 6000, stop)
    assert done.status != 0
    assert done.output == "begun\n"


class Compiler:
    """Writes the object it is asked for, once it is let."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.calls = 0

    def run(
        self, command: Sequence[str], directory: Path, timeout_s: float, stop: threading.Event | None = None
    ) -> Completed:
        self.calls += 1
        assert self.allowed.wait(600)
        Path(command[-1]).write_text("precompiled")
        return Completed(status=0, output="", seconds=0.0)


def test_a_build_does_not_wait_for_headers_and_the_next_one_finds_them(tmp_path: Path) -> None:
    compiler = Compiler()
    header = tmp_path / "core.h"
    header.write_text("int x;")
    precompiled = PrecompiledHeaders(tmp_path, ["cc"], compiler, CompilerSlots(1))
    assert precompiled.include_flags(header, [], wait=False) == ["-include", str(header)]
    assert precompiled.include_flags(header, [], wait=False) == ["-include", str(header)]
    until(lambda: compiler.calls == 1)  # who comes before it has begun goes without
    compiler.allowed.set()
    waited = precompiled.include_flags(header, [], wait=True)
    assert precompiled.is_in(waited)
    assert precompiled.is_in([])
    assert not precompiled.is_in(["-include", str(header)])
    assert waited == precompiled.include_flags(header, [], wait=False)
    assert Path(waited[1] + ".gch").read_text() == "precompiled"
    assert compiler.calls == 1


def test_headers_for_flags_that_few_builds_share_are_not_waited_for(tmp_path: Path) -> None:
    compiler = Compiler()
    compiler.allowed.set()
    header = tmp_path / "core.h"
    header.write_text("int x;")
    precompiled = PrecompiledHeaders(tmp_path, ["cc"], compiler, CompilerSlots(1))
    for _ in range(WORTH - 1):
        assert precompiled.include_flags(header, ["-O3"], wait=True) == ["-include", str(header)]
        assert precompiled.ready(header, ["-O3"]) == ["-include", str(header)]
    assert compiler.calls == 0
    assert precompiled.is_in(precompiled.include_flags(header, ["-O3"], wait=True))
    assert precompiled.is_in(precompiled.ready(header, ["-O3"]))
    assert compiler.calls == 1


class Failing:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def supports(self, request: BuildRequest) -> bool:
        return True

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        self._log.append(self.name)
        return Attempt(library=None, log="error: wrong")


def test_after_a_fast_route_has_failed_the_deciding_one_is_next(tmp_path: Path) -> None:
    log: list[str] = []
    routes = [Failing(name, log) for name in ("split", "slim", "stock")]
    LocalBuilder(BuildCache(tmp_path), routes, "t").build(
        BuildRequest(name="m", files=(SourceFile(name="m.cpp", text="int x"),))
    )
    assert log == ["split", "stock"]
