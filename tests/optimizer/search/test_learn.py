"""What a run learns while it runs."""

from __future__ import annotations

import pytest

from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.memory.records import LONGEST_KERNEL
from artifacts.run_events import LoggedStep
from artifacts.task import TaskRef
from artifacts.trajectory import State
from optimizer.search.learn import transition_of
from optimizer.tasks import Task

TASK = Task(ref=TaskRef(task_id="t/-/a", suite="t", family="softmax"), source="the task", path="a.py")


def time(us: float) -> Timing:
    return Timing(median_us=us, low_us=us, high_us=us)


def step(state: State, measurement: Measurement | None, direction: str = "") -> LoggedStep:
    return LoggedStep(
        task_id="t/-/a",
        step_id="1.0",
        parent_id="0.0",
        index=1,
        mode="optimize",
        candidate_sha256="b" * 64,
        parent_sha256="a" * 64,
        direction=direction,
        strategies=(),
        plan="hold rows",
        state=state,
        measurement=measurement,
        model="model",
    )


FASTER = Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=time(25.0), incumbent=time(50.0))


@pytest.mark.parametrize("direction", ["", "fusion"])
def test_a_step_teaches_its_gain_with_and_without_a_direction(direction: str, softmax_state: State) -> None:
    found = transition_of(step(softmax_state, FASTER, direction), TASK, "the child", "run")
    assert found is not None
    assert (found.reward, found.direction_id, found.plan, found.llm) == (1.0, direction, "hold rows", "model")
    assert (found.kernel, found.reference) == ("the child", "the task")


@pytest.mark.parametrize(
    "measured",
    [None, Measurement(outcome=Outcome.INFRA_ERROR, stage="build", device="cpu", error="disk full")],
)
def test_what_says_nothing_of_the_step_teaches_nothing(measured: Measurement | None, softmax_state: State) -> None:
    assert transition_of(step(softmax_state, measured), TASK, "the child", "run") is None


def test_a_source_too_long_for_a_memory_is_not_shown_to_other_tasks_either(softmax_state: State) -> None:
    found = transition_of(step(softmax_state, FASTER), TASK, "x" * (LONGEST_KERNEL + 1), "run")
    assert found is not None
    assert (found.reward, found.kernel, found.reference) == (1.0, "", "")
