"""The stages of one job, each in processes of its own: static guard, build, measure."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path

from artifacts.measurement import GuardFinding, Measurement, Outcome
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.device_lock import exclusive_device
from optimizer.evaluation.guard.static import check_source
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import ForkServer
from optimizer.evaluation.worker.profiler import Profiler
from optimizer.evaluation.worker.verifying import Verifying, ending

_CLOCK_RULES = frozenset({"clock", "cache"})
"""Findings of clocks that contradict each other."""
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
        builds: compiles what sandboxes ask for.
        cache: folder of built libraries, which sandboxes may read, and of measured ceilings.
        guards: see ``LocalEvaluator``.

    Attributes:
        verifying: gives jobs their processes; close it to end those that wait for work.
    """

    def __init__(self, server: ForkServer, builds: BuildServer, cache: Path, *, guards: bool = True) -> None:
        self._guards = guards
        self.verifying = Verifying(server, builds, cache, guards=guards)
        self._profiler = Profiler(cache)

    def device_bytes(self, job: EvaluationJob, device: Device) -> int | None:
        """What a job should find free on its device; None where that is not known."""
        if device.backend == "cpu":
            return 0
        sizes = self.verifying.sizes(job)
        return None if sizes is None else sizes.evaluation_bytes(device.memory_bytes)

    def build(self, job: EvaluationJob, device: Device) -> Measurement | Built:
        """Static guard, then loads that compile everything; nothing is run but the modules themselves.

        The device stays out of sight, so that builds disturb no timing. What fails for that reason is decided where
        the candidate is verified. The incumbent is built here too: on a host that has not seen it, its compilers would
        otherwise run while the evaluation holds a seat on the device.
        """
        if job.reference_only:
            return Built(findings=(), build_s=0.0, notes=())
        findings = check_source(job.candidate_source, job.backend, job.task_source) if self._guards else ()
        fatal = [finding for finding in findings if finding.fatal]
        if fatal:
            return Measurement(
                outcome=Outcome.REJECTED,
                stage="guard",
                device=device.name,
                error="; ".join(describe(finding) for finding in fatal[:5]),
                findings=findings,
            )
        start = time.monotonic()
        failure, notes = self._load(job, device, job.candidate_source)
        seconds = time.monotonic() - start
        if failure is not None and (job.backend == "cpu" or failure.final):
            return Measurement(
                outcome=failure.outcome,
                stage="build",
                device=device.name,
                error=failure.reason,
                findings=findings,
                build_s=seconds,
            )
        if job.incumbent_source:
            self._load(job, device, job.incumbent_source)
        return Built(findings=findings, build_s=seconds, notes=notes)

    def _load(self, job: EvaluationJob, device: Device, source: str) -> tuple[Failure | None, tuple[str, ...]]:
        """Load one source in a sandbox of its own; how that failed, and what was said of its builds."""
        if job.backend == "cuda" and "cpp_extension" not in source:
            return None, ()
        with self.verifying.sandbox(job, None if job.backend == "cuda" else device) as process:
            sandbox = SandboxClient(
                process.channel, job.settings.build_timeout_s, tf32=job.settings.tf32, dtype=job.settings.dtype
            )
            try:
                sandbox.load(source)
            except Failure as failure:
                failure.reason += ending(process.child) if failure.gone else ""
                return failure, sandbox.build_notes
        return None, sandbox.build_notes

    def measure(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool = False) -> Measurement:
        """Verifier and sandbox at work, then the profiler when asked; always one measurement.

        ``alone`` keeps evaluations of all processes from the device meanwhile.
        """
        measurement = self._verified(job, device, alone=alone)
        if job.backend == "cpu" and _clocks_disagreed(measurement):
            # Other work on the same cores does that to honest kernels; a liar is caught again by new processes. What
            # the second verifier says stands: rejected, or no verdict where the load explains the difference.
            measurement = self._verified(job, device)
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
        with exclusive_device(device.key):
            return self._profiler.annotate(measurement, job, device)

    def _verified(self, job: EvaluationJob, device: Device, *, alone: bool = False) -> Measurement:
        return self.verifying.verified(job, device, alone=alone)


def describe(finding: GuardFinding) -> str:
    """One line for a finding."""
    where = f"line {finding.line}: " if finding.line is not None else ""
    return f"{where}{finding.message} [{finding.rule}]"


def _clocks_disagreed(measurement: Measurement) -> bool:
    failed = measurement.outcome in (Outcome.REJECTED, Outcome.INFRA_ERROR)
    return failed and any(finding.rule in _CLOCK_RULES for finding in measurement.findings)


def crowded(measurement: Measurement) -> bool:
    """Whether a failure may come from what others hold on the device."""
    failed = measurement.outcome in (Outcome.RUNTIME_ERROR, Outcome.INFRA_ERROR, Outcome.COMPILE_ERROR)
    return failed and _CROWDED.search(measurement.error) is not None
