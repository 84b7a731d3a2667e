"""Sandboxes from the worker's side: one for each candidate, some of them started ahead."""

from __future__ import annotations

import collections
import contextlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from artifacts.errors import UnavailableError
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.device_lock import DeviceLock
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.sandbox.channel import ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import ForkServer

MOST_SPARES = 2
_START_S = 60.0
_AFTER_FAILURE_S = 1.0


class SandboxProcess:
    """One fresh process that will run one candidate; :meth:`close` ends it and what it leaves.

    Args:
        server: starts it.
        builds: compiles what it asks for.
        backend, device: what it runs on; without a device it sees none.
        readable: folders that it may read.
    """

    def __init__(
        self, server: ForkServer, builds: BuildServer, *, backend: str, device: Device | None, readable: list[str]
    ) -> None:
        self._scratch = tempfile.mkdtemp(prefix="htam-")
        self.channel, theirs = channel_pair()
        spec = {
            "backend": backend,
            "device": device.key if device else None,
            "scratch": str(Path(self._scratch).resolve()),
            "readable": readable,
        }
        self.started = False
        try:
            with theirs, builds.open_channel() as builder:
                self.child = server.spawn("sandbox", spec, [theirs.fileno(), builder.fileno()])
        except UnavailableError:
            self._forget()
            raise

    def start(self) -> bool:
        """Let it start its CUDA device; False when it can not. The caller has entered the device lock."""
        try:
            self.channel.send({"do": "start"})
            reply, _ = self.channel.receive(_START_S)
        except (ChannelClosedError, ChannelTimeoutError):
            return False
        self.started = "error" not in reply
        return self.started

    def admit(self, job: EvaluationJob, cpu_s: float) -> None:
        """Tell it what the job's candidate may do; it shuts all other doors before it loads anything."""
        policy: dict[str, Any] = {
            "do": "policy",
            "programs": bool(re.search(r"\btriton\b", job.candidate_source)),
            "memory_gib": job.settings.memory_gib,
            "cpu_s": cpu_s,
        }
        with contextlib.suppress(ChannelClosedError):  # whoever asks it next is told
            self.channel.send(policy)

    def end(self) -> None:
        """End the process group now and wait until it is gone, with all that it held on a device."""
        self.child.kill()
        self.child.wait(10)

    def close(self) -> None:
        """End it and remove its folder."""
        self.end()
        self._forget()

    def _forget(self) -> None:
        self.channel.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Startable(Protocol):
    """What :class:`WarmPool` keeps; implementations: :class:`SandboxProcess`, a fake in tests."""

    def start(self) -> bool:
        """See :class:`SandboxProcess`."""
        ...

    def close(self) -> None:
        """See :class:`SandboxProcess`."""
        ...


Warm = TypeVar("Warm", bound=Startable)


class WarmPool(Generic[Warm]):
    """Processes of one device whose CUDA context was started ahead, one after the other, while nobody times.

    The driver starts contexts of a host one at a time, whatever device they are for, so several that start together
    only make each other, and whoever waits to time, wait.

    Args:
        make: a new process that has not touched the device.
        device_lock: of the device, for this object alone.
        most: how many to keep.
    """

    def __init__(self, make: Callable[[], Warm], device_lock: DeviceLock, most: int = MOST_SPARES) -> None:
        self._make = make
        self._device_lock = device_lock
        self._most = most
        self._ready: collections.deque[Warm] = collections.deque()
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name="warm-sandboxes")
        self._thread.start()

    def take(self, wait_s: float) -> Warm | None:
        """A started process, None when there is none within ``wait_s``; another one is made in its place."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ready or self._closed, wait_s)
            warm = self._ready.popleft() if self._ready else None
            self._changed.notify_all()
        return warm

    def dismiss(self) -> None:
        """End all that wait; new ones are made when somebody asks again."""
        with self._changed:
            self._wanted = False
            gone = list(self._ready)
            self._ready.clear()
        for warm in gone:
            warm.close()

    def close(self) -> None:
        """End all, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.dismiss()
        self._thread.join(_AFTER_FAILURE_S)
        if not self._thread.is_alive():  # it may wait in the lock for somebody who times
            self._device_lock.close()

    def _serve(self) -> None:
        while self._waited_for_work():
            try:
                warm = self._make()
            except UnavailableError:
                return
            if not self._started(warm):
                warm.close()
                time.sleep(_AFTER_FAILURE_S)
            elif not self._kept(warm):
                warm.close()

    def _waited_for_work(self) -> bool:
        """Wait until one is missing; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._wanted and len(self._ready) < self._most))
            return not self._closed

    def _started(self, warm: Warm) -> bool:
        self._device_lock.enter()
        try:
            return warm.start()
        finally:
            self._device_lock.leave()

    def _kept(self, warm: Warm) -> bool:
        with self._changed:
            if self._closed or not self._wanted:
                return False
            self._ready.append(warm)
            self._changed.notify_all()
            return True
