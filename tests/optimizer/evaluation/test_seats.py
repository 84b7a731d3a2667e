"""Who sits at which device, and what happens to those for whom there was no room."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from artifacts.measurement import Measurement, Timing
from artifacts.outcome import Outcome
from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.local import Seats, _Batch
from optimizer.evaluation.quiet import QuietHost
from optimizer.evaluation.stages import Built, crowded

FIRST, SECOND = (Device(backend="cuda", index=index, name="d", key=f"GPU-{index}") for index in range(2))
CPU = Device(backend="cpu", index=0, name="cpu", key="cpu")
RIGHT = Measurement(
    outcome=Outcome.CORRECT, stage="timing", device="d", timing=Timing(median_us=2.0, low_us=1.0, high_us=3.0)
)


def failed(outcome: Outcome, error: str) -> Measurement:
    return Measurement(outcome=outcome, stage="run", device="d", error=error)


FULL = failed(Outcome.RUNTIME_ERROR, "CUDA out of memory. Tried to allocate 12 GiB")


def test_seats_are_spread_over_devices() -> None:
    seats = Seats(2)
    with seats.seat((FIRST, SECOND)) as one, seats.seat((FIRST, SECOND)) as two:
        assert {one, two} == {FIRST, SECOND}


def test_a_cpu_has_one_seat() -> None:
    assert (Seats(6).of(CPU), Seats(6).of(FIRST)) == (1, 6)


def test_who_needs_a_whole_device_waits_for_all_and_newcomers_wait_for_him() -> None:
    seats = Seats(2)
    log: list[str] = []

    def whole() -> None:
        with seats.whole(FIRST):
            log.append("whole")
            log.append("whole done")

    def newcomer() -> None:
        with seats.seat((FIRST,)):
            log.append("newcomer")

    threads = [threading.Thread(target=work) for work in (whole, newcomer)]
    with seats.seat((FIRST,)):
        for thread in threads:
            thread.start()
            while not seats._wanted_whole[FIRST.key]:
                time.sleep(0.005)
        assert log == []
    for thread in threads:
        thread.join()
    assert log == ["whole", "whole done", "newcomer"]


def test_another_device_is_free_meanwhile() -> None:
    seats = Seats(1)
    with seats.whole(FIRST), seats.seat((FIRST, SECOND)) as device:
        assert device is SECOND


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

    def measure(self, job: EvaluationJob, device: Device, built: Built, *, alone: bool = False) -> Measurement:
        self.alone.append(alone)
        return self.script.pop(0)


def evaluated(*script: Measurement) -> tuple[Outcome, list[bool]]:
    stages = ScriptedStages(*script)
    job = EvaluationJob(job_id="j", task_id="t", task_source="", candidate_source="", backend="cuda", seed=1)
    batch = _Batch(cast(Any, stages), QuietHost(), Seats(2), {"cuda": (FIRST,)})
    ((_, measurement),) = batch.run([job], 1)
    return measurement.outcome, stages.alone


def test_a_candidate_for_which_there_was_no_room_is_judged_again_alone() -> None:
    assert evaluated(FULL, RIGHT) == (Outcome.CORRECT, [False, True])


def test_what_does_not_fit_an_empty_device_either_is_its_own_fault() -> None:
    assert evaluated(FULL, FULL) == (Outcome.RUNTIME_ERROR, [False, True])


def test_other_failures_are_not_judged_again() -> None:
    assert evaluated(failed(Outcome.RUNTIME_ERROR, "ValueError"), RIGHT) == (Outcome.RUNTIME_ERROR, [False])
