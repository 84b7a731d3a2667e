"""The client's side of the fork server, usable from several threads, and how much memory a process holds."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from artifacts.errors import UnavailableError
from optimizer.evaluation.sandbox.channel import ChannelClosedError, channel_pair

_START_S = 120.0
_KEPT = (
    "OMP_NUM_THREADS",
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "TZ",
    "CC",
    "CXX",
)
"""Environment the server and its children see; everything else, keys above all, stays outside."""


class Child:
    """One process of the fork server: its whole group dies with :meth:`kill`."""

    def __init__(self, server: ForkServer, ticket: int) -> None:
        self._server = server
        self.ticket = ticket
        self.pid = 0
        self.status: int | None = None
        self.started = threading.Event()
        self.ended = threading.Event()

    def wait(self, timeout_s: float) -> int | None:
        """Exit status (negative: signal), or None when it still runs after ``timeout_s``."""
        self.ended.wait(timeout_s)
        return self.status

    def kill(self) -> None:
        """End the process group now; harmless when it has ended."""
        if not self.ended.is_set():
            self._server.kill(self)


class ForkServer:
    """Starts children quickly. Close it to end everything it started.

    It lives as long as the thread that made it. Its imports go on after the constructor has returned.
    """

    def __init__(self) -> None:
        self._control, theirs = channel_pair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "optimizer.evaluation.worker.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._ready = threading.Event()
        self._gone = False
        self._tickets = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True, name="fork-server")
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Return when the server has imported what children need.

        Raises:
            UnavailableError: it has ended or takes too long.
        """
        if not self._ready.wait(_START_S) or self._gone:
            raise UnavailableError("the evaluation process did not start", "is torch installed?")

    def spawn(self, entry: str, spec: Mapping[str, Any], fds: Sequence[int]) -> Child:
        """Start ``entry`` with ``spec`` (JSON-ready) and duplicates of ``fds``.

        Raises:
            UnavailableError: the server is gone.
        """
        self.wait_ready()
        with self._lock:
            child = Child(self, next(self._tickets))
            self._children[child.ticket] = child
            try:
                self._control.send({"entry": entry, "spec": dict(spec), "ticket": child.ticket}, fds)
            except ChannelClosedError as problem:
                raise UnavailableError(f"the evaluation process is gone: {problem}") from problem
        if not child.started.wait(_START_S):
            raise UnavailableError("the evaluation process does not answer")
        return child

    def kill(self, child: Child) -> None:
        """See :meth:`Child.kill`."""
        with self._lock, contextlib.suppress(ChannelClosedError):
            self._control.send({"kill": child.ticket})

    def close(self) -> None:
        """End the server and all children."""
        with self._lock, contextlib.suppress(OSError):
            self._control.shutdown()
        if self._ready.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        self._control.close()

    def _read(self) -> None:
        try:
            self._control.receive()
            self._ready.set()
            while True:
                message, _ = self._control.receive()
                self._note(message)
        except ChannelClosedError:
            self._gone = True
            self._ready.set()
            for child in list(self._children.values()):
                child.started.set()
                child.ended.set()

    def _note(self, message: dict[str, Any]) -> None:
        child = self._children[message["ticket"]]
        if "pid" in message:
            child.pid = message["pid"]
            child.started.set()
        else:
            child.status = message["status"]
            child.ended.set()
            del self._children[child.ticket]


def server_environment() -> dict[str, str]:
    """The few variables a child may see, and where this package lies."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if "OMP_NUM_THREADS" in kept:  # Numba asks for all cores otherwise, and torch then has them too
        kept["NUMBA_NUM_THREADS"] = kept["OMP_NUM_THREADS"]
    root = str(Path(__file__).resolve().parents[3])
    return {**kept, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}


def resident_bytes(pid: int) -> int:
    """Resident set of a process, shared pages included; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def shared_bytes(pid: int) -> int:
    """Part of the resident set that lies in memory files and is shared with other processes; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^RssShmem:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0
