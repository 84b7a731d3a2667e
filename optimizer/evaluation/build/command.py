"""Run compilers: own process group, wall-clock limit, output captured."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_LOOK_S = 0.1
NICENESS = 10
"""A judge on a device waits for its processor in a few milliseconds instead of queueing behind compilers."""


class BuildTimeoutError(RuntimeError):
    """A compiler ran past its limit; says nothing about other routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Exit status and joined output of one command."""

    status: int
    output: str
    seconds: float


class Runner(Protocol):
    """Runs one compiler command; the sandbox may give another one.

    Contract: the command and all its children are gone when ``run`` returns or raises.
    """

    def run(
        self, command: Sequence[str], directory: Path, timeout_s: float, stop: threading.Event | None = None
    ) -> Completed:
        """Run ``command`` in ``directory``; end it early once ``stop`` is set (its status then is not 0).

        Raises:
            BuildTimeoutError: it ran past the limit.
        """
        ...


class ProcessRunner:
    """Runs commands as child processes that leave the processor to those who measure.

    Args:
        environment: variables of the children; a scrubbed copy of ours when None.
        niceness: how far they step back.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, niceness: int = NICENESS) -> None:
        self._niceness = niceness
        self._environment = dict(scrubbed_environment() if environment is None else environment)

    def run(
        self, command: Sequence[str], directory: Path, timeout_s: float, stop: threading.Event | None = None
    ) -> Completed:
        """See :class:`Runner`."""
        start = time.monotonic()
        environment = {**self._environment, "TMPDIR": str(directory)}
        process = subprocess.Popen(
            list(command),
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, process.pid, self._niceness)
        try:
            output = _output(process, timeout_s, stop)
        except subprocess.TimeoutExpired as problem:
            raise BuildTimeoutError(f"{command[0]} ran longer than {timeout_s:.0f} s") from problem
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        seconds = time.monotonic() - start
        return Completed(status=process.returncode, output=output.decode("utf-8", "replace"), seconds=seconds)


def _output(process: subprocess.Popen[bytes], timeout_s: float, stop: threading.Event | None) -> bytes:
    """All that a process writes until it ends or is stopped; ``subprocess.TimeoutExpired`` past the limit."""
    if stop is None:
        return process.communicate(timeout=timeout_s)[0]
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return process.communicate(timeout=_LOOK_S)[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
            if stop.is_set():
                process.kill()


_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CXX", "CC", "TMPDIR")


def scrubbed_environment() -> dict[str, str]:
    """Our environment without secrets: what compilers need and nothing else."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}
