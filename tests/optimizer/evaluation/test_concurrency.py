"""Who sits at which device, and what happens to those for whom there was no room."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any, cast

import pytest

from artifacts.measurement import Measurement, Outcome, Timing
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.local import Concurrency, Place, Ready, ReadyJobs, _Batch
from optimizer.evaluation.worker.stages import Built, crowded

FIRST, SECOND = (Device(backend="cuda", index=index, name="d", key=f"GPU-{index}") for index in range(2))
CPU = Device(backend="cpu", index=0, name="cpu", key="cpu")
RIGHT = Measurement(
    outcome=Outcome.CORRECT, stage="timing", device="d", timing=Timing(median_us=2.0, low_us=1.0, high_us=3.0)
)


def failed(outcome: Outcome, error: str) -> Measurement:
    return Measurement(outcome=outcome, stage="run", device="d", error=error)


FULL = failed(Outcome.RUNTIME_ERROR, "CUDA out of memory. Tried to allocate 12 GiB")


GIB = 1 << 30
CARD = Device(backend="cuda", index=0, name="d", key="GPU-9", memory_bytes=80 * GIB)


def ready(name: str, gib: float = 0.0) -> Ready:
    job = EvaluationJob(job_id=name, task_id="t", task_source="", candidate_source="", backend="cuda", seed=1)
    return Ready(job=job, built=Built(findings=(), build_s=0.0, notes=()), need_bytes=int(gib * GIB))


class Line:
    """Jobs that wait in order, and those that were let in."""

    def __init__(self, concurrency: Concurrency, *waiting: Ready) -> None:
        self.concurrency = concurrency
        self.jobs = ReadyJobs()
        self.inside: dict[str, tuple[Place, ExitStack]] = {}
        for each in waiting:
            concurrency.add(self.jobs, each)

    def admit(self, *devices: Device) -> list[str]:
        """Let in whoever finds room; their names."""
        names = []
        while self.concurrency._choice(self.jobs, devices) is not None:
            stack = ExitStack()
            chosen = stack.enter_context(self.concurrency.next(self.jobs, devices))
            assert chosen is not None
            self.inside[chosen[0].job.job_id] = chosen[1], stack
            names.append(chosen[0].job.job_id)
        return names

    def leave(self, name: str) -> None:
        self.inside.pop(name)[1].close()


def test_jobs_are_spread_over_devices() -> None:
    line = Line(Concurrency(2), ready("a"), ready("b"))
    line.admit(FIRST, SECOND)
    assert {place.device for place, _ in line.inside.values()} == {FIRST, SECOND}


def test_a_cpu_has_one_place() -> None:
    assert (Concurrency(6).of(CPU), Concurrency(6).of(FIRST)) == (1, 6)


def test_memory_bounds_those_inside_and_small_ones_pass() -> None:
    line = Line(Concurrency(6), ready("large", 50), ready("larger", 45), ready("small", 2))
    assert line.admit(CARD) == ["large", "small"]
    line.leave("large")
    assert line.admit(CARD) == ["larger"]


def test_nobody_is_passed_for_ever() -> None:
    line = Line(Concurrency(2), ready("first", 60), ready("large", 50), *(ready(f"s{n}", 1) for n in range(9)))
    line.admit(CARD)
    for number in range(5):
        line.leave(f"s{number}")
        line.admit(CARD)
    line.leave("s5")
    assert line.admit(CARD) == []
    line.leave("first")
    assert line.admit(CARD) == ["large", "s6"]


def test_who_wants_all_of_a_device_has_it_alone_from_the_start() -> None:
    line = Line(Concurrency(6), ready("small", 1), ready("whole", 79), ready("next", 1))
    assert line.admit(CARD) == ["small", "next"]
    for name in ("small", "next"):
        line.leave(name)
    concurrency = line.concurrency
    concurrency.add(line.jobs, ready("last", 1))
    assert line.admit(CARD) == ["whole"]
    assert line.inside["whole"][0].alone


def test_who_needs_a_whole_device_waits_for_all_and_newcomers_wait_for_him() -> None:
    concurrent = Concurrency(2)
    line = Line(concurrent, ready("inside"))
    line.admit(FIRST)
    log: list[str] = []

    def whole() -> None:
        with concurrent.whole(FIRST):
            log.append("whole")
            log.append("whole done")

    def newcomer() -> None:
        with concurrent.next(line.jobs, (FIRST,)):
            log.append("newcomer")

    threads = [threading.Thread(target=work) for work in (whole, newcomer)]
    for thread in threads:
        thread.start()
        while not concurrent._wanted_whole[FIRST.key]:
            time.sleep(0.005)
    concurrent.add(line.jobs, ready("new"))
    assert log == []
    line.leave("inside")
    for thread in threads:
        thread.join()
    assert log == ["whole", "whole done", "newcomer"]


def test_another_device_is_free_meanwhile() -> None:
    concurrent = Concurrency(1)
    line = Line(concurrent, ready("a"))
    with concurrent.whole(FIRST):
        line.admit(FIRST, SECOND)
    assert line.inside["a"][0].device is SECOND


@pytest.mark.parametrize(
    ("measurement", "answer"),
    [
        (FULL, True),
        (failed(Outcome.INFRA_ERROR, "the reference does not fit: CUDA out of memory."), True),
        (failed(Outcome.RUNTIME_ERROR, "ValueError: other"), False),
        (failed(Outcome.WRONG_RESULT, "out of memory"), False),
        (RIGHT, False),
    ],
)
def test_only_failures_for_want_of_memory_are_blamed_on_others(measurement: Measurement, answer: bool) -> None:
    assert crowded(measurement) is answer


class ScriptedStages:
    """Measures as the script says and remembers who was alone."""

    def __init__(self, *script: Measurement) -> None:
        self.script = list(script)
        self.alone: list[bool] = []

    def build(self, job: EvaluationJob, device: Device) -> Built:
        return Built(findings=(), build_s=0.0, notes=())

    def device_bytes(self, job: EvaluationJob, device: Device) -> int:
        return 0

    def measure(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool = False) -> Measurement:
        self.alone.append(alone)
        return self.script.pop(0)


def evaluated(*script: Measurement) -> tuple[Outcome, list[bool]]:
    stages = ScriptedStages(*script)
    job = EvaluationJob(job_id="j", task_id="t", task_source="", candidate_source="", backend="cuda", seed=1)
    batch = _Batch(cast(Any, stages), Concurrency(2), {"cuda": (FIRST,)})
    ((_, measurement),) = batch.run([job], 1)
    return measurement.outcome, stages.alone


def test_a_candidate_for_which_there_was_no_room_is_judged_again_alone() -> None:
    assert evaluated(FULL, RIGHT) == (Outcome.CORRECT, [False, True])


def test_what_does_not_fit_an_empty_device_either_is_its_own_fault() -> None:
    assert evaluated(FULL, FULL) == (Outcome.RUNTIME_ERROR, [False, True])


def test_other_failures_are_not_judged_again() -> None:
    assert evaluated(failed(Outcome.RUNTIME_ERROR, "ValueError"), RIGHT) == (Outcome.RUNTIME_ERROR, [False])
