"""Verifiers from the worker's side: a process serves one job after the other as long as it comes back clean."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator

from optimizer.evaluation.sandbox.channel import ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import ForkServer

_CLEAN_S = 10.0


class VerifierProcess:
    """One verifier.

    Attributes:
        channel: to it.
        served: whether it has given a verdict and will say next whether it may serve again.
    """

    def __init__(self, server: ForkServer, device: Device) -> None:
        self.channel, theirs = channel_pair()
        spec = {"backend": device.backend, "device": device.key, "stderr": True}
        with theirs:
            self.child = server.spawn("verifier", spec, [theirs.fileno()])
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


class Verifiers:
    """The verifiers of a worker, by device. One that breaks off a job, or is not clean after it, is replaced."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._idle: dict[str, list[VerifierProcess]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def verifier(self, device: Device) -> Iterator[VerifierProcess]:
        """A verifier for one job."""
        verifier = self._idle_one(device) or VerifierProcess(self._server, device)
        try:
            yield verifier
        finally:
            with self._lock:
                kept = verifier.served and not self._closed
                if kept:
                    self._idle[device.key].append(verifier)
            if not kept:
                verifier.close()

    def dismiss(self, device: Device) -> None:
        """End those of a device that wait for work, so that its memory is free."""
        with self._lock:
            gone = self._idle.pop(device.key, [])
        for verifier in gone:
            verifier.close()

    def close(self) -> None:
        """End all that wait for work; those at work hang up when their job ends."""
        with self._lock:
            gone = [verifier for idle in self._idle.values() for verifier in idle]
            self._idle.clear()
            self._closed = True
        for verifier in gone:
            verifier.close()

    def _idle_one(self, device: Device) -> VerifierProcess | None:
        while True:
            with self._lock:
                verifier = self._idle[device.key].pop() if self._idle[device.key] else None
            if verifier is None or verifier.is_clean():
                return verifier
            verifier.close()
