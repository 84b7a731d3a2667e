"""Counters of a candidate that was found correct; what cannot be had becomes a note, never an error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from artifacts.measurement import Measurement
from optimizer.evaluation.build.builder import BuildResult
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.build.toolchain import detect_toolchain
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.kept_file import content_hash, keep, read_kept
from optimizer.evaluation.verify.counters import (
    METRICS,
    KernelCounters,
    NoCountersError,
    complaint,
    parse_table,
    with_counters,
)
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import server_environment

_USUAL = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_LAUNCHES = 48
"""Launches of one call that are looked at; each is replayed several times."""


class ProfilerUnavailableError(RuntimeError):
    """This host has no profiler or does not let us read counters; it will not for the next candidate either."""


def find_ncu() -> str:
    """Path of the profiler.

    Raises:
        ProfilerUnavailableError: it is not installed.
    """
    home = os.environ.get("CUDA_HOME")
    found = shutil.which("ncu") or (shutil.which("ncu", path=str(Path(home) / "bin")) if home else None)
    usual = (str(path) for pattern in _USUAL for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True))
    result = found or next(usual, None)
    if result is None:
        raise ProfilerUnavailableError("ncu is not installed here")
    return result


def ncu_command(ncu: str, log: Path, target: Sequence[str]) -> list[str]:
    """The profiler's command line: clocks as they are, caches flushed before each replay, base units."""
    options = [
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--print-kernel-base",
        "demangled",
        "--metrics",
        ",".join(METRICS.values()),
    ]
    options += ["--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"]
    options += ["--target-processes", "application-only", "--launch-count", str(_LAUNCHES), "--log-file", str(log)]
    return [ncu, *options, *target]


def run_ncu(target: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> tuple[KernelCounters, ...]:
    """Profile ``target``, a command that brackets what matters by ``cudaProfilerStart`` and ``cudaProfilerStop``.

    Raises:
        NoCountersError: it ended or was ended without a table.
        ProfilerUnavailableError: no profiler, or the driver refuses counters to this user.
    """
    ncu = find_ncu()
    with tempfile.TemporaryDirectory(prefix="htam-ncu-") as folder:
        log = Path(folder) / "log"
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                ncu_command(ncu, log, target),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(_end, process)
            status = _wait(process, timeout_s)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if status is None:
        raise NoCountersError(f"profiling took more than {timeout_s:g} s")
    if "ERR_NVGPUCTRPERM" in text or "LibraryNotLoaded" in text:
        raise ProfilerUnavailableError(complaint(text.splitlines()))
    return parse_table(text)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End profiler and target, which share the process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


Run = Callable[[Sequence[str], Mapping[str, str], float], tuple[KernelCounters, ...]]
_TIMEOUT_S = 90.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the cache holds for one task, candidate and device."""

    kernels: tuple[KernelCounters, ...]


class Profiler:
    """Adds counters to measurements; remembers them by source, and a host's refusal for good.

    Args:
        folder: the build cache, beside whose entries profiles are kept.
        run: what runs a command under the profiler.
    """

    def __init__(self, folder: Path, run: Run = run_ncu) -> None:
        self._folder = folder.resolve()
        self._run = run
        self._refusal = ""

    def annotate(self, measurement: Measurement, job: EvaluationJob, device: Device) -> Measurement:
        """``measurement`` with counters in its profile, or with a note that says why not.

        The caller holds the device.
        """
        if not job.settings.profile or measurement.timing is None or measurement.profile is None:
            return measurement
        try:
            kernels = self._counters(job, device)
        except (NoCountersError, ProfilerUnavailableError, OSError) as problem:
            note = f"profile from counted bytes and flops, no hardware counters: {problem}"
            return dataclasses.replace(measurement, notes=(*measurement.notes, note))
        profile = with_counters(measurement.profile, kernels, measurement.timing.median_us)
        return dataclasses.replace(measurement, profile=profile)

    def _counters(self, job: EvaluationJob, device: Device) -> tuple[KernelCounters, ...]:
        if device.backend != "cuda":
            raise NoCountersError("they need a CUDA device")
        path = self._folder / "profiles" / f"{_key(job, device)}.json"
        if (kept := read_kept(_Kept, path)) is not None:
            return kept.kernels
        if self._refusal:
            raise ProfilerUnavailableError(self._refusal)
        try:
            kernels = self._measure(job, device)
        except ProfilerUnavailableError as problem:
            self._refusal = str(problem)
            raise
        keep(path, _Kept(kernels=kernels))
        return kernels

    def _measure(self, job: EvaluationJob, device: Device) -> tuple[KernelCounters, ...]:
        with tempfile.TemporaryDirectory(prefix="htam-", ignore_cleanup_errors=True) as folder:
            scratch = str(Path(folder).resolve())
            spec: dict[str, object] = {
                "task": job.task_source,
                "candidate": job.candidate_source,
                "scratch": scratch,
                "cache": str(self._folder),
                "fingerprint": detect_toolchain().fingerprint,
                "tf32": job.settings.tf32,
                "dtype": job.settings.dtype,
                "programs": bool(re.search(r"\btriton\b", job.candidate_source)),
                "cpu_s": _TIMEOUT_S,
            }
            path = Path(scratch) / "spec.json"
            path.write_text(json.dumps(spec), encoding="utf-8")
            target = [sys.executable, "-P", "-m", "optimizer.evaluation.worker.profiled", str(path)]
            return self._run(target, _environment(scratch, device), min(_TIMEOUT_S, job.settings.run_timeout_s))


def _environment(scratch: str, device: Device) -> dict[str, str]:
    """What a sandbox sees; the profiler's own lock file lies in the scratch folder too, the target has to write it."""
    return {
        **server_environment(),
        "CUDA_VISIBLE_DEVICES": str(device.index),
        "CUDA_CACHE_DISABLE": "1",
        "HOME": scratch,
        "TMPDIR": scratch,
        "TORCH_EXTENSIONS_DIR": f"{scratch}/extensions",
        "TRITON_CACHE_DIR": f"{scratch}/triton",
    }


def _key(job: EvaluationJob, device: Device) -> str:
    """SHA-256 (hex) over everything counters depend on."""
    arithmetic = [job.settings.tf32, job.settings.dtype]
    return content_hash(job.task_source, job.candidate_source, arithmetic, device.name, METRICS)


class CachedBuilder:
    """A :class:`optimizer.evaluation.build.builder.Builder` over entries that exist.

    Args:
        cache: where evaluation builds.
        fingerprint: of the toolchain evaluation builds with.
    """

    def __init__(self, cache: BuildCache, fingerprint: str) -> None:
        self._cache = cache
        self._fingerprint = fingerprint

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """The library of ``request``, or a result without one."""
        found = self._cache.find(request.key(self._fingerprint))
        if found is None or not found[0].built:
            return BuildResult(library="", route="cache", log="not built before")
        entry, directory = found
        return BuildResult(library=str(directory / entry.library), route=entry.route, cached=True)
