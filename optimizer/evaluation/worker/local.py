"""Evaluate on this host: builds in parallel, several evaluations on a device, one of them timing."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement
from optimizer.evaluation.build.builder import default_root, standard_builder
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.device_lock import building, measuring
from optimizer.evaluation.guard.static import GuardedBuilder
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.verify.memory_budget import CONTEXT_BYTES
from optimizer.evaluation.worker.devices import Device, devices_of
from optimizer.evaluation.worker.processes import ForkServer
from optimizer.evaluation.worker.stages import Built, Stages, crowded
from optimizer.evaluation.worker.verifying import infrastructure
from optimizer.evaluation.worker.warm_pool import MOST_SPARES

_MOST_CONCURRENT = 6
"""Beyond that evaluations wait for their turn to time, and memory of the device is all that more would take."""
_MOST_PASSED = 6
"""Jobs that may pass one for which there is no room yet."""
_UNKNOWN_SHARE = 0.25
"""Of a device's memory, for a task whose bytes can not be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Where to measure and to build.

    Attributes:
        devices: CUDA device indices; all when empty.
        cache: folder of built libraries; the user's when None.
        concurrent: evaluations on one CUDA device at a time; by the number of cores when 0.
    """

    devices: tuple[int, ...] = ()
    cache: Path | None = None
    concurrent: int = 0


class LocalEvaluator:
    """A :class:`optimizer.evaluation.job.Evaluator` over processes of this host.

    Args:
        workers: candidates that build at a time; two for each core when 0 (compilers queue for cores on their own).
        settings: devices and cache.
        guards: without them a candidate may be the reference itself, which shows what fits a device; for benchmarks
            alone, no job and no command asks for it.
    """

    def __init__(self, workers: int = 0, settings: LocalSettings | None = None, *, guards: bool = True) -> None:
        self._settings = settings or LocalSettings()
        self._workers = workers or 2 * (os.cpu_count() or 1)
        root = self._settings.cache or default_root()
        root.mkdir(parents=True, exist_ok=True)
        self._server = ForkServer()  # imports torch while this process looks for its compilers
        self._builds = BuildServer(GuardedBuilder(standard_builder(root)))
        self._stages = Stages(self._server, self._builds, cache=root, guards=guards)
        self._concurrency = Concurrency(
            self._settings.concurrent or min(_MOST_CONCURRENT, max((os.cpu_count() or 1) // 2, 1))
        )
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._closed = False

    @property
    def seconds(self) -> Mapping[str, Mapping[str, float]]:
        """Job id → where its verifier spent its time, for benchmarks."""
        return self._stages.verifying.seconds

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        """Evaluate all jobs and yield results as they arrive.

        Raises:
            UnavailableError: no device of a job's backend, the evaluator is closed, or torch does not load.
        """
        if self._closed:
            raise UnavailableError("the evaluator is closed")
        waiting = list(jobs)
        devices = {backend: self._devices_of(backend) for backend in {job.backend for job in waiting}}
        self._server.wait_ready()
        batch = _Batch(self._stages, self._concurrency, devices)
        yield from batch.run(waiting, self._workers)

    def _devices_of(self, backend: str) -> tuple[Device, ...]:
        if backend not in self._devices:
            self._devices[backend] = devices_of(backend, self._settings.devices)
        return self._devices[backend]

    def close(self) -> None:
        """End all processes; the evaluator cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._stages.verifying.close()
            self._server.close()
            self._builds.close()


@dataclass(slots=True, eq=False, kw_only=True)
class Ready:
    """A job that has built.

    Attributes:
        need_bytes: what it should find free on its device.
        passed: how many jobs behind it went first, since there was room for them and none for it.
    """

    job: EvaluationJob
    built: Built
    need_bytes: int = 0
    passed: int = 0


class ReadyJobs:
    """The jobs of a batch that wait for a device, in the order in which they built."""

    def __init__(self) -> None:
        self.waiting: list[Ready] = []
        self.ended = False


@dataclass(frozen=True, slots=True)
class Place:
    """What an evaluation holds: a device, bytes of its memory, and whether all others are away."""

    device: Device
    bytes: int
    alone: bool


class Concurrency:
    """Which evaluations may be on each device at a time, by number and by memory; shared by all batches of a worker.

    Args:
        each: evaluations at a time on a CUDA device; one on a CPU.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._taken: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._wanted_whole: Counter[str] = Counter()
        self._changed = threading.Condition()

    def of(self, device: Device) -> int:
        """Concurrency of a device."""
        return 1 if device.backend == "cpu" else self._each

    def add(self, jobs: ReadyJobs, ready: Ready) -> None:
        """Let a job wait."""
        with self._changed:
            jobs.waiting.append(ready)
            self._changed.notify_all()

    def end(self, jobs: ReadyJobs) -> None:
        """Nobody waits any more."""
        with self._changed:
            jobs.waiting.clear()
            jobs.ended = True
            self._changed.notify_all()

    @contextlib.contextmanager
    def next(self, jobs: ReadyJobs, devices: Sequence[Device]) -> Iterator[tuple[Ready, Place] | None]:
        """Wait for a job for which there is room, and hold its place; None when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: jobs.ended or self._choice(jobs, devices))
            chosen = self._choice(jobs, devices)
            if chosen is not None:
                self._seat(jobs, *chosen)
        try:
            yield chosen
        finally:
            if chosen is not None:
                self._leave(chosen[1])

    @contextlib.contextmanager
    def whole(self, device: Device) -> Iterator[None]:
        """Wait until nobody uses a device and hold it whole, so that its memory is free; newcomers wait."""
        with self._changed:
            self._wanted_whole[device.key] += 1
            self._changed.wait_for(lambda: self._taken[device.key] == 0)
            self._taken[device.key] = self.of(device)
        try:
            yield
        finally:
            with self._changed:
                self._wanted_whole[device.key] -= 1
                self._taken[device.key] = 0
                self._changed.notify_all()

    def _seat(self, jobs: ReadyJobs, ready: Ready, place: Place) -> None:
        for earlier in jobs.waiting[: jobs.waiting.index(ready)]:
            earlier.passed += 1
        jobs.waiting.remove(ready)
        self._taken[place.device.key] += self.of(place.device) if place.alone else 1
        self._bytes[place.device.key] += place.bytes

    def _leave(self, place: Place) -> None:
        with self._changed:
            self._taken[place.device.key] -= self.of(place.device) if place.alone else 1
            self._bytes[place.device.key] -= place.bytes
            self._changed.notify_all()

    def _choice(self, jobs: ReadyJobs, devices: Sequence[Device]) -> tuple[Ready, Place] | None:
        """The first job for which there is room; none passes one that was passed often."""
        for ready in jobs.waiting:
            if (place := self._place(devices, ready.need_bytes)) is not None:
                return ready, place
            if ready.passed >= _MOST_PASSED:
                return None
        return None

    def _place(self, devices: Sequence[Device], need: int) -> Place | None:
        """Room on the device where fewest are; a job that wants nearly all of one gets it alone."""
        open_ones = [device for device in devices if not self._wanted_whole[device.key]]
        for device in sorted(open_ones, key=lambda device: self._taken[device.key]):
            taken, usable = self._taken[device.key], self._usable(device)
            if taken == 0 and need > usable:
                return Place(device, need, alone=True)
            if taken < self.of(device) and self._bytes[device.key] + need <= usable:
                return Place(device, need, alone=False)
        return None

    def _usable(self, device: Device) -> int:
        """Bytes for tensors when as many evaluations as may be are there."""
        if not device.memory_bytes:
            return 1 << 60
        return device.memory_bytes - (2 * self.of(device) + MOST_SPARES) * CONTEXT_BYTES


class _Batch:
    """Jobs on their way: a pool builds, threads measure as many at a time as fit, results queue up."""

    def __init__(self, stages: Stages, concurrent: Concurrency, devices: dict[str, tuple[Device, ...]]) -> None:
        self._stages = stages
        self._concurrency = concurrent
        self._devices = devices
        self._ready = {backend: ReadyJobs() for backend in devices}
        self._done: queue.Queue[tuple[str, Measurement] | Exception] = queue.Queue()

    def run(self, jobs: list[EvaluationJob], workers: int) -> Iterator[tuple[str, Measurement]]:
        """Evaluate; those that need no compiler go first, so that a device is not idle while others build."""
        measurers = {
            backend: min(sum(map(self._concurrency.of, devices)), len(jobs))
            for backend, devices in self._devices.items()
        }
        for backend, count in measurers.items():
            for _ in range(count):
                threading.Thread(target=self._measure_all, args=(backend,), daemon=True, name="measure").start()
        pool = ThreadPoolExecutor(workers, thread_name_prefix="build")
        try:
            for job in sorted(jobs, key=lambda job: "cpp_extension" in job.candidate_source):
                pool.submit(self._build, job)
            for _ in jobs:
                yield self._next_result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for ready in self._ready.values():
                self._concurrency.end(ready)

    def _next_result(self) -> tuple[str, Measurement]:
        """Wait for one; an error of a thread is raised here, where somebody sees it."""
        result = self._done.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _build(self, job: EvaluationJob) -> None:
        try:
            self._build_one(job)
        except Exception as problem:  # noqa: BLE001 - raised again by the thread that waits
            self._done.put(problem)

    def _build_one(self, job: EvaluationJob) -> None:
        device = self._devices[job.backend][0]
        try:
            with building():
                result = self._stages.build(job, device)
        except UnavailableError as problem:
            result = infrastructure(device, str(problem))
        if isinstance(result, Measurement):
            self._done.put((job.job_id, result))
        else:
            need = self._stages.device_bytes(job, device)
            unknown = int(device.memory_bytes * _UNKNOWN_SHARE)
            ready = Ready(job=job, built=result, need_bytes=unknown if need is None else need)
            self._concurrency.add(self._ready[job.backend], ready)

    def _measure_all(self, backend: str) -> None:
        while self._measure_next(backend):
            pass

    def _measure_next(self, backend: str) -> bool:
        """Measure the next job for which there is room; False when none will come."""
        with self._concurrency.next(self._ready[backend], self._devices[backend]) as chosen:
            if chosen is None:
                return False
            (ready, place) = chosen
            try:
                measurement = self._measured(ready.job, place.device, ready.built, alone=place.alone)
            except Exception as problem:  # noqa: BLE001 - raised again by the thread that waits
                self._done.put(problem)
                return True
        self._settle(ready, place, measurement)
        return True

    def _settle(self, ready: Ready, place: Place, measurement: Measurement) -> None:
        """Report a measurement, or that of another try where others may have taken the memory it wanted."""
        try:
            if crowded(measurement) and place.device.backend == "cuda" and not place.alone:
                with self._concurrency.whole(place.device):
                    measurement = self._measured(ready.job, place.device, ready.built, alone=True)
            self._done.put((ready.job.job_id, measurement))
        except Exception as problem:  # noqa: BLE001 - raised again by the thread that waits
            self._done.put(problem)

    def _measured(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool) -> Measurement:
        try:
            if device.backend == "cuda":
                return self._stages.measure(job, device, built, alone=alone)
            with measuring():
                return self._stages.measure(job, device, built)
        except UnavailableError as problem:
            return infrastructure(device, str(problem))
