"""Who may use a device now: many evaluations side by side, or one that times, alone.

Locks are ``flock`` on files named after the device, so evaluations of several worker processes respect each
other, and the kernel releases what a killed process held. Two files a device:

- ``use``: shared by those who load, build answers and check; exclusive for the one who times.
- ``turn``: held exclusively while waiting to time. Newcomers must pass it, so a timer never starves; those who are
  inside look at it between their steps and step back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol


class Gate(Protocol):
    """One evaluation's way to its device; implementations: :class:`DeviceGate`, :class:`OpenGate`.

    Contract: between ``enter`` and ``leave`` the holder may use the device, inside ``alone`` nobody else does.
    ``waited_s`` is what all of it has cost. Not thread-safe.
    """

    waited_s: float

    def enter(self) -> None:
        """Wait until nobody times, then use the device beside others."""
        ...

    def give_way(self) -> None:
        """Let those time who wait for it; call it between steps, when nothing of ours runs on the device."""
        ...

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Use the device alone for the length of the block."""
        ...

    def leave(self) -> None:
        """Stop using the device."""
        ...

    def close(self) -> None:
        """Leave for good."""
        ...


class OpenGate:
    """For a device that the caller holds already: nothing to wait for."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def enter(self) -> None:
        """See :class:`Gate`."""

    def give_way(self) -> None:
        """See :class:`Gate`."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See :class:`Gate`."""
        yield

    def leave(self) -> None:
        """See :class:`Gate`."""

    def close(self) -> None:
        """See :class:`Gate`."""


class DeviceGate:
    """A :class:`Gate` by file locks.

    Args:
        key: identity of the device, the same for all processes.
        waiting: called with True before a wait that blocks and with False after it.
        folder: of the lock files; one for each user by default.
    """

    def __init__(self, key: str, waiting: Callable[[bool], None] | None = None, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir()) / f"htam-locks-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = re.sub(r"\W", "_", key)
        self._use: IO[str] = (folder / name).open("a")
        self._turn: IO[str] = (folder / f"{name}.turn").open("a")
        self._waiting = waiting or (lambda waits: None)
        self.waited_s = 0.0

    def enter(self) -> None:
        """See :class:`Gate`."""
        self._admit(fcntl.LOCK_SH)

    def give_way(self) -> None:
        """See :class:`Gate`."""
        if _taken(self._turn, fcntl.LOCK_SH):
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            return
        self.leave()
        self.enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See :class:`Gate`. Whoever was inside is inside again afterwards, even when the block raises."""
        self.leave()
        self._admit(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.leave()
            self._admit(fcntl.LOCK_SH)

    def leave(self) -> None:
        """See :class:`Gate`."""
        fcntl.flock(self._use, fcntl.LOCK_UN)

    def close(self) -> None:
        """See :class:`Gate`."""
        self._use.close()
        self._turn.close()

    def _admit(self, kind: int) -> None:
        if self._admitted_at_once(kind):
            return
        start = time.monotonic()
        self._waiting(True)
        try:
            fcntl.flock(self._turn, kind)
            fcntl.flock(self._use, kind)
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        finally:
            self._waiting(False)
            self.waited_s += time.monotonic() - start

    def _admitted_at_once(self, kind: int) -> bool:
        if not _taken(self._turn, kind):
            return False
        try:
            return _taken(self._use, kind)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)


@contextlib.contextmanager
def device_alone(key: str, waiting: Callable[[bool], None] | None = None) -> Iterator[None]:
    """Hold a device against all other evaluations of this user for the length of the block."""
    gate = DeviceGate(key, waiting)
    try:
        gate._admit(fcntl.LOCK_EX)
        yield
    finally:
        gate.close()


def _taken(file: IO[str], kind: int) -> bool:
    """Take a lock without waiting; False when somebody else has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
