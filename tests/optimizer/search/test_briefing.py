from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Measurement, Timing
from artifacts.memory.htg import Memory
from artifacts.memory.tables import transition_rows
from artifacts.outcome import Outcome
from artifacts.state import State
from artifacts.task import TaskRef
from optimizer.arms import ArmContext, Choice, make_arm
from optimizer.search.briefing import Briefing
from optimizer.search.plan import Plan
from optimizer.search.population import Node, Population
from optimizer.search.settings import SearchSettings
from optimizer.search.situation import Target
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
    arm = make_arm("htam", spoken, SelectionSettings(explore=0.0, least_lead=0.0))
    choice = arm.choose(ArmContext(state=softmax_state))
    ref = TaskRef(task_id="t/-/a", suite="t", family="softmax")
    task = Task(ref=ref, source="pass", path="a.py")
    briefing = Briefing(arm, Target(arch="sm_90", language=language))
    plan = Plan(mode="first", parent_id=None, state=softmax_state, choice=choice)
    found = briefing.situation(task, Population(SearchSettings()), plan, slot="0.0", sample=0)
    assert found.strategies
    assert all(bool(advice.strategy.template) == shown for advice in found.strategies)


@pytest.mark.parametrize(("mode", "shown"), [("first", True), ("optimize", True), ("repair", False)])
def test_a_kernel_is_shown_unless_a_candidate_is_repaired(
    mode: str, shown: bool, memory: Memory, softmax_state: State
) -> None:
    rows = list(memory.transitions())
    near = next(row for row in rows if row.reward is not None and row.state.family == "softmax")
    before = replace(near.state, arch="sm_90", language=Language.CUDA, log2_speedup=1.0, log2_progress=1.0)
    offer = replace(near, state=before, reward=0.5, kernel="__global__ void own() {}", reference="the task")
    known = replace(memory, table=transition_rows([offer if row is near else row for row in rows]))
    briefing = Briefing(make_arm("htam", known, SelectionSettings()), Target(arch="sm_90", language=Language.CUDA))
    ref = TaskRef(task_id="t/-/a", suite="t", family="softmax")
    task = Task(ref=ref, source="pass", path="a.py")
    state = replace(softmax_state, features=frozenset())
    plan = Plan(mode=mode, parent_id=None, state=state, choice=Choice(arm="htam"))
    found = briefing.situation(task, Population(SearchSettings()), plan, slot="1.0", sample=0)
    assert (found.exemplar is not None) is shown


def tried(step_id: str, parent: str | None, *, correct: bool = True) -> Node:
    time = Timing(median_us=10.0, low_us=10.0, high_us=10.0)
    measured = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="off")
    if correct:
        measured = Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=time)
    return Node(
        step_id=step_id,
        parent_id=parent,
        index=int(step_id[0]),
        mode="optimize",
        source=f"source of {step_id}",
        sha256=step_id,
        plan=f"plan of {step_id}",
        direction="",
        strategies=(),
        measurement=measured,
    )


@pytest.mark.parametrize(
    ("parent", "told"),
    [
        ("1.0", {"plan of 0.0": True, "plan of 1.0": True, "plan of 2.0": False, "plan of 3.0": False}),
        ("3.0", {"plan of 0.0": True, "plan of 1.0": True, "plan of 2.0": False}),
    ],
)
def test_tries_are_told_with_whether_they_are_part_of_the_candidate(
    parent: str, told: dict[str, bool], softmax_state: State
) -> None:
    population = Population(SearchSettings())
    for node in (tried("0.0", None), tried("1.0", "0.0"), tried("2.0", "0.0"), tried("3.0", "1.0", correct=False)):
        population.add(node)
    briefing = Briefing(make_arm("feedback", None, SelectionSettings()), Target(arch="cpu", language=Language.CPP))
    mode = "optimize" if population.node(parent).correct else "repair"
    plan = Plan(mode=mode, parent_id=parent, state=softmax_state, choice=Choice(arm="feedback"))
    task = Task(ref=TaskRef(task_id="t/-/a", suite="t", family="softmax"), source="pass", path="a.py")
    found = briefing.situation(task, population, plan, slot="4.0", sample=4)
    assert {attempt.plan: attempt.kept for attempt in found.tried} == told
