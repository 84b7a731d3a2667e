"""Verifier and sandboxes at work on one job, watched by the worker."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.device_lock import SharedDeviceLock
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.sandbox.channel import ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.verify.memory_budget import Sizes
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import Child, ForkServer, resident_bytes, shared_bytes
from optimizer.evaluation.worker.verifier_process import VerifierProcess, Verifiers
from optimizer.evaluation.worker.warm_pool import SandboxProcess, WarmPool

_VERIFIER_STAGES = 8
"""A verifier may take this many run time-outs in all: it makes that many kinds of requests."""
_POLL_S = 0.25
_SPARE_S = 10.0
"""For a process with its device started; after that one is made on the spot."""
_REMEMBERED = 1000
_COUNT_S = 60.0
"""For a task whose bytes are counted; one that takes longer is taken for unknown."""


class Verifying:
    """Gives each job a verifier and a fresh process for its candidate; one instance serves all threads of a worker.

    Args:
        server: starts processes.
        builds: compiles what sandboxes ask for.
        folder: of built libraries, which sandboxes may read, and of measured ceilings.
        guards: see ``LocalEvaluator``.
    """

    def __init__(self, server: ForkServer, builds: BuildServer, folder: Path, *, guards: bool = True) -> None:
        self._guards = guards
        self._server = server
        self._builds = builds
        self._folder = str(folder.resolve())
        self._verifiers = Verifiers(server)
        self._warm_pools: dict[str, WarmPool[SandboxProcess]] = {}
        self._lock = threading.Lock()
        self._counting: dict[str, threading.Lock] = {}
        self._sizes: dict[str, Sizes | None] = {}
        self._seconds: deque[tuple[str, Mapping[str, float]]] = deque(maxlen=_REMEMBERED)

    @property
    def seconds(self) -> dict[str, Mapping[str, float]]:
        """Where the last jobs' verifiers spent their time, for benchmarks."""
        return dict(tuple(self._seconds))

    def sizes(self, job: EvaluationJob) -> Sizes | None:
        """Bytes of a job's task; None for one that can not be counted without memory."""
        name = hashlib.sha256(job.task_source.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            lock = self._counting.setdefault(name, threading.Lock())
        with lock:
            if name not in self._sizes:
                self._sizes[name] = self._counted(job.task_source)
            return self._sizes[name]

    def _counted(self, source: str) -> Sizes | None:
        channel, theirs = channel_pair()
        with _scratch() as scratch, theirs:
            child = self._server.spawn("sizes", {"source": source, "scratch": scratch}, [theirs.fileno()])
            theirs.close()
            try:
                message, _ = channel.receive(_COUNT_S)
                return Sizes(**message)
            except (ChannelClosedError, ChannelTimeoutError):
                return None
            finally:
                child.kill()
                channel.close()

    def verified(self, job: EvaluationJob, device: Device, *, alone: bool = False) -> Measurement:
        """One verifier's verdict; ``alone`` keeps all others from the device meanwhile."""
        if alone:
            self._warm_pool_of(device).dismiss()
            self._verifiers.dismiss(device)
        with contextlib.ExitStack() as stack:
            sandbox = stack.enter_context(self.sandbox(job, device, warm_wait_s=None if alone else _SPARE_S))
            verifier = stack.enter_context(self._verifiers.verifier(device))
            request = {"job": encode(job), "scratch": stack.enter_context(_scratch()), "folder": self._folder}
            sizes = self.sizes(job) if device.backend == "cuda" else None
            request |= {
                "sizes": None if sizes is None else dataclasses.asdict(sizes),
                "guards": self._guards,
                "device_name": device.name,
                "device_key": device.key,
                "alone": alone,
                "sandbox": _known(sandbox),
            }
            sandboxes = [sandbox]
            stack.callback(_end, sandboxes)  # first: the verifier's death frees the device
            try:
                verifier.channel.send(request, [sandbox.channel.fileno()])
            except ChannelClosedError:
                return infrastructure(device, f"the verifier ended unexpectedly{ending(verifier.child)}")
            return self._await(verifier, sandboxes, job, device, stack, None if alone else 0.0)

    def _await(
        self,
        verifier: VerifierProcess,
        sandboxes: list[SandboxProcess],
        job: EvaluationJob,
        device: Device,
        stack: contextlib.ExitStack,
        warm_wait_s: float | None,
    ) -> Measurement:
        """Wait for the verdict; meanwhile give the verifier more sandboxes and watch their memory.

        The verifier's time stands still while it waits for the device. As it holds the device it must not wait for a
        sandbox that has yet to start there.
        """
        whole = _VERIFIER_STAGES * job.settings.run_timeout_s
        left, waits, last = whole, False, time.monotonic()
        watch = _MemoryWatch(sandboxes, job.settings.memory_gib, verifier.child)
        while left > 0:
            now = time.monotonic()
            left, last = left - (0.0 if waits else now - last), now
            try:
                message, _ = verifier.channel.receive(_POLL_S)
            except ChannelTimeoutError:
                watch.look()
                continue
            except ChannelClosedError:
                return infrastructure(device, f"the verifier ended unexpectedly{ending(verifier.child)}")
            if "waits" in message:
                waits = bool(message["waits"])
            elif "begins" in message:
                left = whole
            elif "want" in message:
                sandboxes.append(stack.enter_context(self.sandbox(job, device, warm_wait_s=warm_wait_s)))
                with contextlib.suppress(ChannelClosedError):  # the next message says how it ended
                    verifier.channel.send(_known(sandboxes[-1]), [sandboxes[-1].channel.fileno()])
            else:
                return self._settled(message, verifier, sandboxes, job, watch)
        return Measurement(
            outcome=Outcome.TIMEOUT,
            stage="timing",
            device=device.name,
            error=f"evaluation took more than {_VERIFIER_STAGES} × {job.settings.run_timeout_s:g} s in all",
        )

    def _settled(
        self,
        message: dict[str, Any],
        verifier: VerifierProcess,
        sandboxes: list[SandboxProcess],
        job: EvaluationJob,
        watch: _MemoryWatch,
    ) -> Measurement:
        """The verdict; the sandboxes end while the verifier still has the device, so that no timing sees them go."""
        measurement = decode(Measurement, message["measurement"])
        self._seconds.append((job.job_id, message["seconds"]))
        suffix = (watch.excess or ending(sandboxes[-1].child)) if message["gone"] else ""
        _end(sandboxes)
        with contextlib.suppress(ChannelClosedError):
            verifier.channel.send({"ended": True})
            verifier.served = True
        return dataclasses.replace(measurement, error=measurement.error + suffix)

    @contextlib.contextmanager
    def sandbox(
        self, job: EvaluationJob, device: Device | None, *, warm_wait_s: float | None = None
    ) -> Iterator[SandboxProcess]:
        """A fresh candidate process; it is gone afterwards. Without a device it sees none.

        On a CUDA device it has started already where one is ready within ``warm_wait_s`` (None: do not ask).
        """
        sandbox = None
        if device is not None and device.backend == "cuda" and warm_wait_s is not None:
            sandbox = self._warm_pool_of(device).take(warm_wait_s)
        sandbox = sandbox or self._fresh(job.backend, device)
        try:
            sandbox.admit(job, job.settings.build_timeout_s + _VERIFIER_STAGES * job.settings.run_timeout_s)
            yield sandbox
        finally:
            sandbox.close()

    def _fresh(self, backend: str, device: Device | None) -> SandboxProcess:
        return SandboxProcess(self._server, self._builds, backend=backend, device=device, readable=[self._folder])

    def _warm_pool_of(self, device: Device) -> WarmPool[SandboxProcess]:
        with self._lock:
            if device.key not in self._warm_pools:
                device_lock = SharedDeviceLock(device.key)
                self._warm_pools[device.key] = WarmPool(lambda: self._fresh("cuda", device), device_lock)
            return self._warm_pools[device.key]

    def close(self) -> None:
        """End the processes that wait for work."""
        for warm_pools in self._warm_pools.values():
            warm_pools.close()
        self._verifiers.close()


class _MemoryWatch:
    """Ends sandboxes that hold more memory than allowed; ``excess`` then says so.

    What a sandbox shares with the verifier, inputs and outputs on their way, is not its own.
    """

    def __init__(self, sandboxes: list[SandboxProcess], limit_gib: float, verifier: Child) -> None:
        self._sandboxes = sandboxes
        self._limit_gib = limit_gib
        self._judge = verifier
        self.excess = ""

    def look(self) -> None:
        """Look now."""
        limit = self._limit_gib * 2**30 + shared_bytes(self._judge.pid)
        for sandbox in self._sandboxes:
            if not self.excess and resident_bytes(sandbox.child.pid) > limit:
                self.excess = f": more than {self._limit_gib:g} GiB of memory"
                sandbox.child.kill()


def _end(sandboxes: list[SandboxProcess]) -> None:
    for sandbox in sandboxes:
        sandbox.end()


def _known(sandbox: SandboxProcess) -> dict[str, Any]:
    """What a verifier must know of a sandbox beside its channel."""
    return {"pid": sandbox.child.pid, "started": sandbox.started}


def ending(child: Child) -> str:
    """How a process ended, as a suffix for a message."""
    status = child.wait(5)
    if status is None:
        return ""
    if status >= 0:
        return f" (exit status {status})"
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(-status).name})"
    return f" (signal {-status})"


def infrastructure(device: Device, reason: str) -> Measurement:
    """No verdict, for a reason that is not the candidate's."""
    return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device=device.name, error=reason)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="htam-")
    try:
        yield str(Path(folder).resolve())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
