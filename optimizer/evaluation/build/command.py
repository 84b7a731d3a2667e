"""Run compilers: limits on time, memory and files, output captured, one a core."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

_LOOK_S = 0.1
_LOG_BYTES = 1 << 20
_FILE_BYTES = 1 << 30
"""Of one file; precompiled headers of torch take a third of that."""
_ENOUGH_BYTES = 8 << 30
_SHARE = 0.75
_CPU_OF_WALL = 4.0
"""Some compilers have threads."""
NICENESS = 10
"""A verifier on a device waits for its processor in a few milliseconds instead of queueing behind compilers."""


class BuildTimeoutError(RuntimeError):
    """A compiler ran past its limit; says nothing about other routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Exit status and joined output of one command."""

    status: int
    output: str
    seconds: float


class Stop(Protocol):
    """Says whether a build is still wanted; once it is not, it never is again. A ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class Order:
    """What the calls of one build share, and a :class:`Stop` for those that are no longer of use.

    Args:
        directory: where they run.
        timeout_s: limit of each.
        wait: whether the build waits for headers that are being precompiled.
        ticket: its place in the queue for compilers.
        stop: says that the whole build is of no use.
    """

    def __init__(self, directory: Path, timeout_s: float, *, wait: bool, ticket: int, stop: Stop | None) -> None:
        self.directory = directory
        self.timeout_s = timeout_s
        self.wait = wait
        self.ticket = ticket
        self.failed = threading.Event()
        self._stop = stop

    def is_set(self) -> bool:
        """Whether a call of this build has failed, or nobody wants it any more."""
        return self.failed.is_set() or (self._stop is not None and self._stop.is_set())


class ProcessRunner:
    """Runs commands as child processes that leave the processor to those who measure.

    Args:
        environment: variables of the children; a scrubbed copy of ours when None.
        niceness: how far they step back.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, niceness: int = NICENESS) -> None:
        self._niceness = niceness
        self._environment = dict(scrubbed_environment() if environment is None else environment)

    def run(self, command: Sequence[str], directory: Path, timeout_s: float, stop: Stop | None = None) -> Completed:
        """Run ``command`` in ``directory``; end it early once ``stop`` is set (its status then is not 0).

        The command and all its children are gone when this returns or raises.

        Raises:
            BuildTimeoutError: it ran past the limit.
        """
        start = time.monotonic()
        environment = {**self._environment, "TMPDIR": str(directory)}
        with tempfile.TemporaryFile(dir=directory) as log:
            process = subprocess.Popen(
                list(command),
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, process.pid, self._niceness)
            _limit(process.pid, timeout_s)
            try:
                _wait(process, timeout_s, stop)
            except subprocess.TimeoutExpired as problem:
                raise BuildTimeoutError(f"{command[0]} ran longer than {timeout_s:.0f} s") from problem
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output = _ends_of(log)
        seconds = time.monotonic() - start
        return Completed(status=process.returncode, output=output.decode("utf-8", "replace"), seconds=seconds)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, stop: Stop | None) -> None:
    """Until a process ends or is stopped; ``subprocess.TimeoutExpired`` past the limit."""
    if stop is None:
        process.wait(timeout_s)
        return
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            process.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
            if stop.is_set():
                process.kill()


def _limit(pid: int, timeout_s: float) -> None:
    """Bound what a process that has just started, and those that it will start, may take.

    The one on processor time is for compilers whose parent was killed, which nobody else would end.
    """
    wanted = {resource.RLIMIT_DATA: _memory_bytes(), resource.RLIMIT_FSIZE: _FILE_BYTES, resource.RLIMIT_CORE: 0}
    wanted[resource.RLIMIT_CPU] = int(_CPU_OF_WALL * timeout_s) + 1
    for kind, value in wanted.items():
        with contextlib.suppress(OSError, ValueError):  # gone already, or under a lower limit
            resource.prlimit(pid, kind, (value, value))


def _memory_bytes() -> int:
    """What one compiler may hold, so that no template takes the host down: what honest ones need, or a fair share."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(int(_SHARE * total / (os.cpu_count() or 1)), min(_ENOUGH_BYTES, total // 2))


def _ends_of(log: IO[bytes]) -> bytes:
    """What was written to a file; of very much, the beginning and the end."""
    size = log.seek(0, os.SEEK_END)
    log.seek(0)
    if size <= 2 * _LOG_BYTES:
        return log.read()
    head = log.read(_LOG_BYTES)
    log.seek(-_LOG_BYTES, os.SEEK_END)
    return head + b"\n[...]\n" + log.read()


_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CXX", "CC", "TMPDIR")


def scrubbed_environment() -> dict[str, str]:
    """Our environment without secrets: what compilers need and nothing else."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


URGENT = 0
"""Ticket of what many builds wait for."""


class CompilerSlots:
    """So many compilers at a time. Of those that wait, the oldest build's go first.

    With all builds served alike, all would be done at the same late moment, and devices idle until then.

    Args:
        count: compilers that run at a time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._tickets = itertools.count(URGENT + 1)
        self._arrivals = itertools.count()
        self._waiting: list[tuple[bool, int, int]] = []
        self._changed = threading.Condition()

    def ticket(self) -> int:
        """A build's place in the queue."""
        return next(self._tickets)

    @contextlib.contextmanager
    def slot(self, ticket: int, *, gets_cheaper: bool = False) -> Iterator[None]:
        """Wait for a slot and hold it; work that ``gets_cheaper`` with time lets all other work go first."""
        with self._changed:
            place = (gets_cheaper, ticket, next(self._arrivals))
            heapq.heappush(self._waiting, place)
            self._changed.wait_for(lambda: self._free > 0 and self._waiting[0] == place)
            heapq.heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
