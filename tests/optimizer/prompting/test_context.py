from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.memory.htg import Memory
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import State
from optimizer.arms import ArmContext, Choice, make_arm
from optimizer.prompting.context import Parent, PromptContexts, Target
from optimizer.prompting.request import Tried
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task


@pytest.mark.parametrize(
    ("template", "language", "shown"),
    [
        ("__shared__ float tile[32];", Language.CUDA, True),
        ("x = tl.load(pointer, mask=mask)", Language.CUDA, False),
        ("__shared__ float tile[32];", Language.CPP, False),
        ("#pragma omp parallel for", Language.CPP, True),
        ("for (int i = 0; i < n; ++i) sum += x[i];", Language.CUDA, True),
    ],
)
def test_a_template_in_another_language_is_left_out(
    template: str, language: Language, shown: bool, memory: Memory, softmax_state: State
) -> None:
    spoken = replace(memory, strategies=tuple(replace(item, template=template) for item in memory.strategies))
    arm = make_arm("htam", spoken, SelectionSettings(explore=0.0, least_margin=0.0))
    choice = arm.choose(ArmContext(state=softmax_state))
    contexts = PromptContexts(arm, Target(arch="sm_90", language=language))
    found = contexts.of_step(TASK, softmax_state, choice, slot="0.0", sample=0)
    assert found.strategies
    assert all(bool(advice.strategy.template) == shown for advice in found.strategies)


TASK = Task(ref=TaskRef(task_id="t/-/a", suite="t", family="softmax"), source="pass", path="a.py")
TIME = Timing(median_us=10.0, low_us=10.0, high_us=10.0)
CORRECT = Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=TIME)
WRONG = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="off")


@pytest.mark.parametrize(("measured", "shown"), [(None, True), (CORRECT, True), (WRONG, False)])
def test_a_kernel_is_shown_unless_a_candidate_is_repaired(
    measured: Measurement | None, shown: bool, memory: Memory, softmax_state: State
) -> None:
    rows = list(memory.transitions())
    near = next(row for row in rows if row.reward is not None and row.state.family == "softmax")
    before = replace(near.state, arch="sm_90", language=Language.CUDA, log2_speedup=1.0, log2_progress=1.0)
    offer = replace(near, state=before, reward=0.5, kernel="__global__ void own() {}", reference="the task")
    known = replace(memory, table=transition_rows([offer if row is near else row for row in rows]))
    target = Target(arch="sm_90", language=Language.CUDA)
    contexts = PromptContexts(make_arm("htam", known, SelectionSettings()), target)
    state = replace(softmax_state, features=frozenset())
    parent = None if measured is None else Parent("the parent", "its plan", measured)
    found = contexts.of_step(TASK, state, Choice(arm="htam"), slot="1.0", sample=0, parent=parent)
    assert (found.reference_kernel is not None) is shown
    assert (found.shown(12).get("reference kernel") == (near.transition_id,)) is shown


def test_the_log_is_told_what_the_prompt_shows(memory: Memory, softmax_state: State) -> None:
    arm = make_arm("htam", memory, SelectionSettings(explore=0.0, least_margin=0.0))
    choice = arm.choose(ArmContext(state=softmax_state))
    tried = [Tried(step_id=f"{step}.0", plan="", outcome=Outcome.CORRECT) for step in range(15)]
    contexts = PromptContexts(arm, Target(arch="cpu", language=Language.CPP))
    found = contexts.of_step(TASK, softmax_state, choice, slot="15.0", sample=0, tried=tried).shown(12)
    assert found["direction"] == (choice.direction,)
    assert found["strategies"] == tuple(use.strategy_id for use in choice.strategies)
    assert found["tried before"] == tuple(f"{step}.0" for step in range(3, 15))
    closed = contexts.of_step(TASK, softmax_state, Choice(arm="htam"), slot="0.0", sample=0)
    assert closed.device_experience is not None
    assert closed.shown(12) == {"device experience": closed.device_experience.sources}
    known = {row.transition_id for row in memory.transitions()} | {one.strategy_id for one in memory.strategies}
    assert set(closed.device_experience.sources) <= known
