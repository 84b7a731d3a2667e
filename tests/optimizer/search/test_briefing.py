from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.memory.htg import Memory
from artifacts.state import State
from artifacts.task import TaskRef
from optimizer.arms import ArmContext, make_arm
from optimizer.search.briefing import Briefing
from optimizer.search.plan import Plan
from optimizer.search.population import Population
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
