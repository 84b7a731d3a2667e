"""Judges from the worker's side: a process serves one job after the other as long as it comes out of each clean."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator

from optimizer.evaluation.hosts import Device
from optimizer.evaluation.process.channel import ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.process.spawn import ForkServer

_CLEAN_S = 10.0


class JudgeProcess:
    """One judge.

    Attributes:
        channel: to it.
        served: whether it has given a verdict and will say next whether it may serve again.
    """

    def __init__(self, server: ForkServer, device: Device) -> None:
        self.channel, theirs = channel_pair()
        spec = {"backend": device.backend, "device": device.key, "stderr": True}
        with theirs:
            self.child = server.spawn("judge", spec, [theirs.fileno()])
        self.served = False

    def is_clean(self) -> bool:
        """Wait for its word that nothing of the last job is left in it."""
        try:
            message, _ = self.channel.receive(_CLEAN_S)
        except (ChannelClosedError, ChannelTimeoutError):
            return False
        self.served = False
        return message.get("clean") is True

    def close(self) -> None:
        """End it, and give the device back that it may hold."""
        self.child.kill()
        self.child.wait(10)
        self.channel.close()


class Judges:
    """The judges of a worker, by device. One that breaks off a job, or is not clean after it, is replaced."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._idle: dict[str, list[JudgeProcess]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def judge(self, device: Device) -> Iterator[JudgeProcess]:
        """A judge for one job."""
        judge = self._idle_one(device) or JudgeProcess(self._server, device)
        try:
            yield judge
        finally:
            with self._lock:
                kept = judge.served and not self._closed
                if kept:
                    self._idle[device.key].append(judge)
            if not kept:
                judge.close()

    def dismiss(self, device: Device) -> None:
        """End those of a device that wait for work, so that its memory is free."""
        with self._lock:
            gone = self._idle.pop(device.key, [])
        for judge in gone:
            judge.close()

    def close(self) -> None:
        """End all that wait for work; those at work hang up when their job ends."""
        with self._lock:
            gone = [judge for idle in self._idle.values() for judge in idle]
            self._idle.clear()
            self._closed = True
        for judge in gone:
            judge.close()

    def _idle_one(self, device: Device) -> JudgeProcess | None:
        while True:
            with self._lock:
                judge = self._idle[device.key].pop() if self._idle[device.key] else None
            if judge is None or judge.is_clean():
                return judge
            judge.close()
