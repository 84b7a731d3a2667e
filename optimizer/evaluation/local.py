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
from artifacts.outcome import Outcome
from optimizer.evaluation.build.channel import BuildServer
from optimizer.evaluation.build.standard import default_root, standard_builder
from optimizer.evaluation.gate import device_alone
from optimizer.evaluation.guard.guarded_builder import GuardedBuilder
from optimizer.evaluation.hosts import Device, devices_of
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.process.spawn import ForkServer
from optimizer.evaluation.quiet import QuietHost
from optimizer.evaluation.stages import Built, Stages, crowded

_MOST_SEATS = 6
"""Beyond that evaluations wait for their turn to time, and memory of the device is all that more would take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """Where to measure and to build.

    Attributes:
        devices: CUDA device indices; all when empty.
        cache: folder of built libraries; the user's when None.
        seats: evaluations on one CUDA device at a time; by the number of cores when 0.
    """

    devices: tuple[int, ...] = ()
    cache: Path | None = None
    seats: int = 0


class LocalEvaluator:
    """A :class:`optimizer.evaluation.protocol.Evaluator` over processes of this host.

    Args:
        workers: candidates that build at a time; two for each core when 0 (compilers queue for cores on their own).
        settings: devices and cache.
    """

    def __init__(self, workers: int = 0, settings: LocalSettings | None = None) -> None:
        self._settings = settings or LocalSettings()
        self._workers = workers or 2 * (os.cpu_count() or 1)
        root = self._settings.cache or default_root()
        root.mkdir(parents=True, exist_ok=True)
        self._server = ForkServer()  # imports torch while this process looks for its compilers
        self._builds = BuildServer(GuardedBuilder(standard_builder(root, slots=self._workers)))
        self._stages = Stages(self._server, self._builds, cache=root)
        self._quiet = QuietHost()
        self._seats = Seats(self._settings.seats or min(_MOST_SEATS, max((os.cpu_count() or 1) // 2, 1)))
        self._devices: dict[str, tuple[Device, ...]] = {}
        self._closed = False

    @property
    def seconds(self) -> Mapping[str, Mapping[str, float]]:
        """Job id → where its judge spent its time, for benchmarks."""
        return self._stages.seconds

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
        batch = _Batch(self._stages, self._quiet, self._seats, devices)
        yield from batch.run(waiting, self._workers)

    def _devices_of(self, backend: str) -> tuple[Device, ...]:
        if backend not in self._devices:
            self._devices[backend] = devices_of(backend, self._settings.devices)
        return self._devices[backend]

    def close(self) -> None:
        """End all processes; the evaluator cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            self._stages.close()
            self._server.close()
            self._builds.close()


class Seats:
    """How many evaluations may be on each device at a time; shared by all batches of a worker.

    Args:
        each: seats of a CUDA device. A CPU has one.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._taken: Counter[str] = Counter()
        self._wanted_whole: Counter[str] = Counter()
        self._changed = threading.Condition()

    def of(self, device: Device) -> int:
        """Seats of a device."""
        return 1 if device.backend == "cpu" else self._each

    @contextlib.contextmanager
    def seat(self, devices: Sequence[Device]) -> Iterator[Device]:
        """Wait for a seat and hold it: on the device where fewest are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._free(devices) is not None)
            device = self._free(devices)
            assert device is not None
            self._taken[device.key] += 1
        try:
            yield device
        finally:
            with self._changed:
                self._taken[device.key] -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def whole(self, device: Device) -> Iterator[None]:
        """Wait until nobody sits at a device and hold all its seats, so that its memory is free; newcomers wait."""
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

    def _free(self, devices: Sequence[Device]) -> Device | None:
        open_ones = [device for device in devices if not self._wanted_whole[device.key]]
        free = [device for device in open_ones if self._taken[device.key] < self.of(device)]
        return min(free, key=lambda device: self._taken[device.key], default=None)


class _Batch:
    """Jobs on their way: a pool builds, threads measure as seats allow, results queue up."""

    def __init__(self, stages: Stages, quiet: QuietHost, seats: Seats, devices: dict[str, tuple[Device, ...]]) -> None:
        self._stages = stages
        self._quiet = quiet
        self._seats = seats
        self._devices = devices
        self._ready: dict[str, queue.Queue[tuple[EvaluationJob, Built] | None]] = {
            backend: queue.Queue() for backend in devices
        }
        self._done: queue.Queue[tuple[str, Measurement] | Exception] = queue.Queue()

    def run(self, jobs: list[EvaluationJob], workers: int) -> Iterator[tuple[str, Measurement]]:
        """Evaluate; those that need no compiler go first, so that a device is not idle while others build."""
        measurers = {
            backend: min(sum(map(self._seats.of, devices)), len(jobs)) for backend, devices in self._devices.items()
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
            for backend, count in measurers.items():
                for _ in range(count):
                    self._ready[backend].put(None)

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
            with self._quiet.building():
                result = self._stages.build(job, device)
        except UnavailableError as problem:
            result = _infrastructure(device, problem)
        if isinstance(result, Measurement):
            self._done.put((job.job_id, result))
        else:
            self._ready[job.backend].put((job, result))

    def _measure_all(self, backend: str) -> None:
        while (item := self._ready[backend].get()) is not None:
            try:
                self._measure_one(backend, *item)
            except Exception as problem:  # noqa: BLE001 - raised again by the thread that waits
                self._done.put(problem)

    def _measure_one(self, backend: str, job: EvaluationJob, built: Built) -> None:
        with self._seats.seat(self._devices[backend]) as device:
            measurement = self._measured(job, device, built, alone=False)
        if crowded(measurement) and device.backend == "cuda":
            with self._seats.whole(device):
                measurement = self._measured(job, device, built, alone=True)
        self._done.put((job.job_id, measurement))

    def _measured(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool) -> Measurement:
        try:
            if device.backend == "cuda":
                return self._stages.measure(job, device, built, alone=alone)
            with device_alone(device.key), self._quiet.measuring():
                return self._stages.measure(job, device, built)
        except UnavailableError as problem:
            return _infrastructure(device, problem)


def _infrastructure(device: Device, problem: Exception) -> Measurement:
    return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device=device.name, error=str(problem))
