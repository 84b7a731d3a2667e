"""What is offered where memory has no direction to give."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.memory.htg import Memory
from artifacts.memory.records import Excerpt
from artifacts.state import State
from artifacts.task import TaskRef
from builder.describe.difference import difference
from builder.describe.wording import written
from optimizer.arms import Choice, make_arm
from optimizer.arms.shuffled import shuffled
from optimizer.llm.prompt import Situation
from optimizer.search.briefing import Briefing
from optimizer.search.cargo import Cargo
from optimizer.search.notes import MOST, notes
from optimizer.search.plan import Plan
from optimizer.search.population import Population
from optimizer.search.rote import by_rote
from optimizer.search.settings import SearchSettings
from optimizer.search.situation import Target
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task

TASK = Task(ref=TaskRef(task_id="t/-/a", suite="t", family="softmax"), source="pass", path="a.py")


def knowing(memory: Memory, *said: tuple[str, str, float]) -> Memory:
    """A memory of which each strategy has at most one recipe: ``(text, family, factor)``."""
    taught = []
    for strategy, (text, family, factor) in zip(memory.strategies, said, strict=False):
        row = next(item for item in memory.transitions() if item.state.family == family)
        recipe = Excerpt(text=text, transition_id=row.transition_id, gain=math.log2(factor))
        taught.append(replace(strategy, recipes=(recipe,)))
    silent = [replace(strategy, recipes=()) for strategy in memory.strategies[len(taught) :]]
    return replace(memory, strategies=(*taught, *silent))


def offered(memory: Memory, state: State) -> list[str]:
    return [note.text for note in notes(memory, Cargo(memory, Language.CPP), state)]


def test_the_own_family_comes_before_kin_and_others_say_nothing(memory: Memory, softmax_state: State) -> None:
    known = knowing(memory, ("of kin", "reduction", 3.0), ("own", "softmax", 1.2), ("of others", "matmul", 2.0))
    assert offered(known, softmax_state) == ["own", "of kin"]


@pytest.mark.parametrize("factor", [0.8, 1.01, 40.0])
def test_what_did_not_gain_or_gained_beyond_belief_is_not_offered(
    factor: float, memory: Memory, softmax_state: State
) -> None:
    assert offered(knowing(memory, ("one", "softmax", factor)), softmax_state) == []


def test_a_cpu_s_trick_is_not_offered_on_a_gpu(memory: Memory, softmax_state: State) -> None:
    known = knowing(memory, ("one", "softmax", 2.0))
    assert offered(known, softmax_state) == ["one"]
    assert offered(known, replace(softmax_state, arch="sm_90")) == []


def test_there_are_few_of_them(memory: Memory, softmax_state: State) -> None:
    known = knowing(memory, *((f"trick {number}", "softmax", 2.0) for number in range(len(memory.strategies))))
    assert len(offered(replace(known, strategies=known.strategies * 2), softmax_state)) == MOST


def test_long_recipes_end_with_a_sentence(memory: Memory, softmax_state: State) -> None:
    (text,) = offered(knowing(memory, ("Load wide. " * 60, "softmax", 2.0)), softmax_state)
    assert len(text) <= 400
    assert text.endswith("Load wide.")


def test_the_shuffled_control_offers_what_others_said(memory: Memory, softmax_state: State) -> None:
    known = knowing(memory, ("own", "softmax", 2.0), ("others", "matmul", 2.0), ("more", "matmul", 2.0))
    assert {offered(shuffled(known, seed), softmax_state)[0] for seed in range(9)} == {"own", "others", "more"}


@pytest.mark.parametrize(
    ("arm", "directed", "mode", "shown"),
    [
        ("htam", False, "optimize", True),
        ("htam", False, "repair", False),
        ("htam", True, "optimize", False),
        ("no-local", False, "optimize", False),
        ("feedback", False, "optimize", False),
    ],
)
def test_notes_are_for_arms_with_local_memory_and_a_closed_gate(
    arm: str, directed: bool, mode: str, shown: bool, memory: Memory, softmax_state: State
) -> None:
    known = knowing(memory, ("own", "softmax", 2.0))
    chosen = Choice(arm=arm, direction=memory.directions[0].direction_id if directed else "")
    plan = Plan(mode=mode, parent_id=None, state=softmax_state, choice=chosen)
    at_home = briefed(arm, known, plan, Language.CPP)
    assert (bool(at_home.record), bool(at_home.notes)) == (shown, False)
    elsewhere = briefed(arm, known, plan, Language.CUDA)  # of which nothing is known on this device
    assert (bool(elsewhere.record), bool(elsewhere.notes)) == (False, shown)


def briefed(arm: str, known: Memory, plan: Plan, language: Language) -> Situation:
    briefing = Briefing(make_arm(arm, known, SelectionSettings()), Target(arch="cpu", language=language))
    return briefing.situation(TASK, Population(SearchSettings()), plan, slot="1.0", sample=1)


KERNEL = "__global__ void f(float* x) { x[threadIdx.x] = 1; }"
SHARED = "__global__ void f(float* x) { __shared__ float s[32]; s[1] = 2; x[threadIdx.x] = s[1]; }"
TORCH = "import torch\ny = torch.relu(torch.matmul(a, b))"


@pytest.mark.parametrize(
    ("parent", "child"), [(KERNEL, SHARED), (SHARED, KERNEL), (TORCH, SHARED), (SHARED, TORCH), (KERNEL, KERNEL)]
)
def test_what_the_builder_writes_from_features_alone_is_rote(parent: str, child: str) -> None:
    text = written(difference(parent, child), parent, child)
    assert by_rote(text), text


@pytest.mark.parametrize(
    "said", ["Introduce shared memory so that each row is read once.", "Drop the second pass", "Use float4 loads"]
)
def test_what_somebody_wrote_is_not_rote(said: str) -> None:
    assert not by_rote(said)
