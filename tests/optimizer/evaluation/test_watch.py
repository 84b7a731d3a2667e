"""Clocks that contradict each other: who lies is rejected, and a machine that is too busy says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from artifacts.measurement import GuardFinding, Measurement, Outcome, Timing
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.verify.effort import Effort
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.plausibility import HostLoad, clocks_disagree, seen_from_outside
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.stages import Built, Stages

CLOSE = Effort.deserved("cpu", 100.0, 100.0, None)
REPORTED = Timing(median_us=100.0, low_us=99.0, high_us=101.0)


class SlowSandbox:
    """Says nothing itself; a call takes so many microseconds of one core."""

    def __init__(self, call_us: float) -> None:
        self._call_s = call_us / 1e6

    def run(self, order: Sequence[int], count: int) -> tuple[float, float]:
        return count * self._call_s, count * self._call_s * 1000.0  # as if all cores were at work


def verdict(real_us: float, backend: str, *, busy: bool) -> Outcome:
    with pytest.raises(Failure) as caught:
        seen_from_outside(cast(SandboxClient, SlowSandbox(real_us)), 3, REPORTED, backend, lambda: busy, CLOSE)
    assert [finding.rule for finding in caught.value.findings] == ["clock"]
    return caught.value.outcome


def test_a_plausible_time_passes() -> None:
    assert seen_from_outside(
        cast(SandboxClient, SlowSandbox(150.0)), 3, REPORTED, "cpu", lambda: False, CLOSE
    ) == pytest.approx(150.0)


def test_a_moderate_difference_on_a_busy_machine_is_no_verdict() -> None:
    assert verdict(400.0, "cpu", busy=True) is Outcome.INFRA_ERROR


def test_the_same_difference_on_a_quiet_machine_is_a_lie() -> None:
    assert verdict(400.0, "cpu", busy=False) is Outcome.REJECTED


def test_a_time_far_below_what_the_judge_sees_is_a_lie_on_any_machine() -> None:
    assert verdict(2000.0, "cpu", busy=True) is Outcome.REJECTED


def test_load_of_the_host_explains_nothing_on_a_device_of_its_own() -> None:
    assert verdict(600.0, "cuda", busy=True) is Outcome.REJECTED


def test_own_work_is_no_load_and_that_of_others_is(tmp_path: Path) -> None:
    stat, own = tmp_path / "stat", [0.0]

    def used(seconds: float) -> None:
        stat.write_text(f"cpu {int(seconds * 100)} 0 0 1000 50 0 0 0 0 0\ncpu0 1 1 1 1\n")

    used(1.0)
    load = HostLoad(lambda: own[0], stat)
    own[0] = 500.0
    used(501.0)
    assert load.others() == 0.0
    used(2000.0)
    assert load.is_busy()


def test_a_kernel_that_does_not_say_explains_nothing(tmp_path: Path) -> None:
    assert not HostLoad(lambda: 0.0, tmp_path / "absent").is_busy()


class ScriptedStages(Stages):
    """Verifiers as the script says."""

    def __init__(self, folder: Path, script: list[Measurement]) -> None:
        super().__init__(cast(Any, None), cast(Any, None), folder)
        self.script = script

    def _verified(self, job: EvaluationJob, device: Device, *, alone: bool = False) -> Measurement:
        return self.script.pop(0)


def disagreeing(outcome: Outcome, rule: str = "clock") -> Measurement:
    finding = GuardFinding(rule=rule, message="m", fatal=outcome is Outcome.REJECTED)
    return Measurement(outcome=outcome, stage="timing", device="d", error="m", findings=(finding,))


RIGHT = Measurement(outcome=Outcome.CORRECT, stage="timing", device="d", timing=REPORTED)


def measured(folder: Path, backend: str, *script: Measurement) -> tuple[Outcome, int]:
    stages = ScriptedStages(folder, [*script])
    job = EvaluationJob(job_id="j", task_id="t", task_source="", candidate_source="", backend=backend, seed=1)
    device = Device(backend=backend, index=0, name="d", key="d")
    measurement = stages.measure(job, device, Built(findings=(), build_s=0.0, notes=()))
    return measurement.outcome, len(script) - len(stages.script)


@pytest.mark.parametrize("rule", ["clock", "cache"])
@pytest.mark.parametrize("first", [Outcome.REJECTED, Outcome.INFRA_ERROR])
def test_clocks_that_disagree_once_are_read_again_and_the_second_verdict_stands(
    tmp_path: Path, rule: str, first: Outcome
) -> None:
    assert measured(tmp_path, "cpu", disagreeing(first, rule), RIGHT) == (Outcome.CORRECT, 2)


@pytest.mark.parametrize("second", [Outcome.REJECTED, Outcome.INFRA_ERROR])
def test_clocks_that_disagree_twice_are_not_read_a_third_time(tmp_path: Path, second: Outcome) -> None:
    script = (disagreeing(Outcome.REJECTED), disagreeing(second), RIGHT)
    assert measured(tmp_path, "cpu", *script) == (second, 2)


def test_other_findings_are_not_judged_again(tmp_path: Path) -> None:
    assert measured(tmp_path, "cpu", disagreeing(Outcome.REJECTED, "decoy"), RIGHT) == (Outcome.REJECTED, 1)


def test_on_a_device_of_its_own_clocks_are_believed_at_once(tmp_path: Path) -> None:
    assert measured(tmp_path, "cuda", disagreeing(Outcome.REJECTED), RIGHT) == (Outcome.REJECTED, 1)


def test_a_moderate_difference_of_clocks_on_a_busy_cpu_is_no_verdict_and_a_large_one_is() -> None:
    assert clocks_disagree("clock", "apart", 0.3, "cpu", lambda: True).outcome is Outcome.INFRA_ERROR
    assert clocks_disagree("clock", "apart", 0.3, "cpu", lambda: False).outcome is Outcome.REJECTED
    assert clocks_disagree("clock", "far apart", 0.01, "cpu", lambda: True).outcome is Outcome.REJECTED
    assert clocks_disagree("clock", "apart", 0.3, "cuda", lambda: True).outcome is Outcome.REJECTED
