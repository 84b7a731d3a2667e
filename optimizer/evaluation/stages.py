"""The stages of one job, each in processes of its own: static guard, build, measure."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.measurement import GuardFinding, Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.build.channel import BuildServer
from optimizer.evaluation.counters.profiler import Profiler
from optimizer.evaluation.gate import device_alone
from optimizer.evaluation.guard.static import check_source
from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.judge.cell_client import Cell
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.process.channel import Channel, ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.process.memory import resident_bytes
from optimizer.evaluation.process.spawn import Child, ForkServer

_CLOCK_RULES = frozenset({"clock", "unsteady"})
"""Findings of clocks that contradict each other."""
_JUDGE_STAGES = 8
"""A judge may take this many run time-outs in all: it makes that many kinds of requests."""
_POLL_S = 0.25
_REMEMBERED = 1000
_CROWDED = re.compile(r"out of memory|CUDA error: (?:memory|resource)", re.IGNORECASE)
"""Failures that the other evaluations on a device may have caused."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What is known of a candidate that built."""

    findings: tuple[GuardFinding, ...]
    build_s: float
    notes: tuple[str, ...]


class Stages:
    """Runs the stages; one instance serves all threads of a worker.

    Args:
        server: starts processes.
        builds: compiles what cells ask for.
        cache: folder of built libraries, which cells may read, and of measured ceilings.
    """

    def __init__(self, server: ForkServer, builds: BuildServer, cache: Path) -> None:
        self._server = server
        self._builds = builds
        self._folder = str(cache.resolve())
        self._profiler = Profiler(cache)
        self._seconds: deque[tuple[str, Mapping[str, float]]] = deque(maxlen=_REMEMBERED)

    @property
    def seconds(self) -> dict[str, Mapping[str, float]]:
        """Where the last jobs' judges spent their time, for benchmarks."""
        return dict(tuple(self._seconds))

    def build(self, job: EvaluationJob, device: Device) -> Measurement | Built:
        """Static guard, then a load that compiles everything; nothing is run but the module itself.

        The device stays out of sight, so that builds disturb no timing. What fails for that reason is decided where
        the candidate is judged.
        """
        findings = check_source(job.candidate_source, job.backend)
        fatal = [finding for finding in findings if finding.fatal]
        if fatal:
            return Measurement(
                outcome=Outcome.REJECTED,
                stage="guard",
                device=device.name,
                error="; ".join(describe(finding) for finding in fatal[:5]),
                findings=findings,
            )
        if job.backend == "cuda" and "cpp_extension" not in job.candidate_source:
            return Built(findings=findings, build_s=0.0, notes=())
        start = time.monotonic()
        with self._cell(job, device, hidden=job.backend == "cuda") as (child, end):
            cell = Cell(Channel(end), job.settings.build_timeout_s)
            try:
                cell.load(job.candidate_source)
            except Failure as failure:
                if job.backend == "cuda" and not failure.final:
                    return Built(findings=findings, build_s=time.monotonic() - start, notes=cell.build_notes)
                return Measurement(
                    outcome=failure.outcome,
                    stage="build",
                    device=device.name,
                    error=failure.reason + (ending(child) if failure.gone else ""),
                    findings=findings,
                    build_s=time.monotonic() - start,
                )
        return Built(findings=findings, build_s=time.monotonic() - start, notes=cell.build_notes)

    def measure(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool = False) -> Measurement:
        """Judge and cell at work, then the profiler when asked; always one measurement.

        ``alone`` keeps evaluations of all processes from the device meanwhile.
        """
        measurement = self._judged(job, device, alone=alone)
        if job.backend == "cpu" and _clocks_disagreed(measurement):
            # Other work on the same cores does that to honest kernels; a liar is caught again by new processes. What
            # the second judge says stands: rejected, or no verdict where the load explains the difference.
            measurement = self._judged(job, device)
        measurement = self._profiled(measurement, job, device)
        return dataclasses.replace(
            measurement,
            findings=(*built.findings, *measurement.findings),
            build_s=built.build_s,
            notes=tuple(dict.fromkeys((*built.notes, *measurement.notes))),
        )

    def _profiled(self, measurement: Measurement, job: EvaluationJob, device: Device) -> Measurement:
        if device.backend == "cpu" or not job.settings.profile:
            return self._profiler.annotate(measurement, job, device)
        with device_alone(device.key):
            return self._profiler.annotate(measurement, job, device)

    def _judged(self, job: EvaluationJob, device: Device, *, alone: bool = False) -> Measurement:
        """One judge's verdict; ``alone`` keeps all others from the device meanwhile."""
        with contextlib.ExitStack() as stack:
            cell, cell_end = stack.enter_context(self._cell(job, device))
            scratch = stack.enter_context(_scratch())
            ours, theirs = channel_pair()
            stack.callback(ours.close)
            spec = {"job": encode(job), "scratch": scratch, "device": device.index, "device_name": device.name}
            spec |= {"folder": self._folder, "cell_pid": cell.pid, "device_key": device.key, "alone": alone}
            with theirs:
                judge = self._server.spawn("judge", {**spec, "stderr": True}, [theirs.fileno(), cell_end.fileno()])
            stack.callback(judge.kill)
            stack.callback(cell.kill)  # first: the judge's death frees the device
            cell_end.close()
            return self._await(ours, judge, [cell], job, device, stack)

    def _await(
        self,
        channel: Channel,
        judge: Child,
        cells: list[Child],
        job: EvaluationJob,
        device: Device,
        stack: contextlib.ExitStack,
    ) -> Measurement:
        """Wait for the verdict; meanwhile give the judge more cells and watch their memory.

        The judge's time stands still while it waits for the device.
        """
        left, waits, last = _JUDGE_STAGES * job.settings.run_timeout_s, False, time.monotonic()
        watch = _MemoryWatch(cells, job.settings.memory_gib)
        while left > 0:
            now = time.monotonic()
            left, last = left - (0.0 if waits else now - last), now
            try:
                message, _ = channel.receive(_POLL_S)
            except ChannelTimeoutError:
                watch.look()
                continue
            except ChannelClosedError:
                return _infrastructure(device, f"the judge ended unexpectedly{ending(judge)}")
            if "waits" in message:
                waits = bool(message["waits"])
                continue
            if "want" in message:
                child, end = stack.enter_context(self._cell(job, device))
                cells.append(child)
                channel.send({"pid": child.pid}, [end.fileno()])
                end.close()
                continue
            measurement = decode(Measurement, message["measurement"])
            self._seconds.append((job.job_id, message["seconds"]))
            if not message["gone"]:
                return measurement
            return dataclasses.replace(measurement, error=measurement.error + (watch.excess or ending(cells[-1])))
        return Measurement(
            outcome=Outcome.TIMEOUT,
            stage="timing",
            device=device.name,
            error=f"evaluation took more than {_JUDGE_STAGES} × {job.settings.run_timeout_s:g} s in all",
        )

    @contextlib.contextmanager
    def _cell(
        self, job: EvaluationJob, device: Device, *, hidden: bool = False
    ) -> Iterator[tuple[Child, socket.socket]]:
        """A fresh candidate process and the socket to it; both are gone afterwards. ``hidden``: it sees no device."""
        ours, theirs = socket.socketpair()
        builds = self._builds.open_channel()
        with _scratch() as scratch:
            spec: dict[str, Any] = {
                "backend": job.backend,
                "device": None if hidden else device.index,
                "scratch": scratch,
                "readable": [self._folder],
                "programs": bool(re.search(r"\btriton\b", job.candidate_source)),
                "memory_gib": job.settings.memory_gib,
                "cpu_s": job.settings.build_timeout_s + _JUDGE_STAGES * job.settings.run_timeout_s,
            }
            with theirs, builds:
                child = self._server.spawn("cell", spec, [theirs.fileno(), builds.fileno()])
            try:
                yield child, ours
            finally:
                child.kill()
                child.wait(10)
                ours.close()


class _MemoryWatch:
    """Ends cells that hold more memory than allowed; ``excess`` then says so."""

    def __init__(self, cells: list[Child], limit_gib: float) -> None:
        self._cells = cells
        self._limit_gib = limit_gib
        self.excess = ""

    def look(self) -> None:
        for cell in self._cells:
            if not self.excess and resident_bytes(cell.pid) > self._limit_gib * 2**30:
                self.excess = f": more than {self._limit_gib:g} GiB of memory"
                cell.kill()


def describe(finding: GuardFinding) -> str:
    """One line for a finding."""
    where = f"line {finding.line}: " if finding.line is not None else ""
    return f"{where}{finding.message} [{finding.rule}]"


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


def _infrastructure(device: Device, reason: str) -> Measurement:
    return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device=device.name, error=reason)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="htam-")
    try:
        yield str(Path(folder).resolve())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clocks_disagreed(measurement: Measurement) -> bool:
    failed = measurement.outcome in (Outcome.REJECTED, Outcome.INFRA_ERROR)
    return failed and any(finding.rule in _CLOCK_RULES for finding in measurement.findings)


def crowded(measurement: Measurement) -> bool:
    """Whether a failure may come from what others hold on the device."""
    failed = measurement.outcome in (Outcome.RUNTIME_ERROR, Outcome.INFRA_ERROR, Outcome.COMPILE_ERROR)
    return failed and _CROWDED.search(measurement.error) is not None
