"""Who may use a device or the host's cores now: many side by side, or one that times, alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

STRETCH_S = 2.0
"""Nobody is alone on a device for much longer at a stretch while others wait."""


class NoDeviceLock:
    """For a device that the caller holds already: nothing to wait for."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def enter(self) -> None:
        """See :class:`SharedDeviceLock`."""

    def give_way(self) -> None:
        """See :class:`SharedDeviceLock`."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See :class:`SharedDeviceLock`."""
        yield

    def breathe(self) -> None:
        """See :class:`SharedDeviceLock`."""

    def leave(self) -> None:
        """See :class:`SharedDeviceLock`."""

    def close(self) -> None:
        """See :class:`SharedDeviceLock`."""


class SharedDeviceLock:
    """One evaluation's way to its device, by file locks.

    Between ``enter`` and ``leave`` the holder may use the device, inside ``alone`` nobody else does. ``waited_s`` is
    what all of it has cost. Not thread-safe.

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
        self._alone_since = 0.0

    def enter(self) -> None:
        """Wait until nobody times, then use the device beside others."""
        self._admit(fcntl.LOCK_SH)

    def give_way(self) -> None:
        """Let those time who wait for it; call it between steps, when nothing of ours runs on the device."""
        if _taken(self._turn, fcntl.LOCK_SH):
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            return
        self.leave()
        self.enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device alone for the length of the block; be inside again afterwards, even when the block raises."""
        self.leave()
        self._admit(fcntl.LOCK_EX)
        self._alone_since = time.monotonic()
        try:
            yield
        finally:
            self.leave()
            self._admit(fcntl.LOCK_SH)

    def breathe(self) -> None:
        """Inside ``alone``: let others in, when we have been there for long, and be alone again afterwards."""
        if time.monotonic() - self._alone_since < STRETCH_S:
            return
        self.leave()
        self._admit(fcntl.LOCK_SH)  # behind those who wait: newcomers queue up behind a timer
        self.leave()
        self._admit(fcntl.LOCK_EX)
        self._alone_since = time.monotonic()

    def leave(self) -> None:
        """Stop using the device."""
        fcntl.flock(self._use, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave for good."""
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


DeviceLock = SharedDeviceLock | NoDeviceLock
"""What an evaluation is given."""


@contextlib.contextmanager
def exclusive_device(key: str, waiting: Callable[[bool], None] | None = None) -> Iterator[None]:
    """Hold a device against all other evaluations of this user for the length of the block."""
    with _admitted(key, fcntl.LOCK_EX, waiting):
        yield


@contextlib.contextmanager
def _admitted(key: str, kind: int, waiting: Callable[[bool], None] | None = None) -> Iterator[None]:
    device_lock = SharedDeviceLock(key, waiting)
    try:
        device_lock._admit(kind)
        yield
    finally:
        device_lock.close()


def _taken(file: IO[str], kind: int) -> bool:
    """Take a lock without waiting; False when somebody else has it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_CORES = "cpu-cores"


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Build beside others on the host's cores, while nobody of this user measures on them, in whatever process."""
    with _admitted(_CORES, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Measure on the host's cores, while nobody of this user builds or measures on them, in whatever process."""
    with _admitted(_CORES, fcntl.LOCK_EX):
        yield
