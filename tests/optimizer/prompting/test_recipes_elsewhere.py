"""What is offered where memory has no direction to give."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Measurement, Outcome
from artifacts.memory.htg import Memory
from artifacts.memory.records import Excerpt
from artifacts.task import TaskRef
from artifacts.trajectory import State
from builder.describe.difference import difference, written
from optimizer.arms import Choice, make_arm
from optimizer.arms.shuffled import shuffled
from optimizer.prompting.context import Parent, PromptContexts, Target
from optimizer.prompting.request import PromptContext
from optimizer.prompting.strategies import MOST_RECIPES, StrategyTexts, auto_generated
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task

TASK = Task(ref=TaskRef(task_id="t/-/a", suite="t", family="softmax"), source="pass", path="a.py")
FAILED = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="off")


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
    return [recipe.text for recipe in StrategyTexts(memory, Language.CPP).recipes_elsewhere(state)]


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
    assert len(offered(replace(known, strategies=known.strategies * 2), softmax_state)) == MOST_RECIPES


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
        ("experience-only", False, "optimize", True),
        ("kernel-only", False, "optimize", False),
        ("feedback", False, "optimize", False),
    ],
)
def test_recipes_from_elsewhere_are_for_arms_with_local_memory_and_a_closed_gate(
    arm: str, directed: bool, mode: str, shown: bool, memory: Memory, softmax_state: State
) -> None:
    known = knowing(memory, ("own", "softmax", 2.0))
    chosen = Choice(arm=arm, direction=memory.directions[0].direction_id if directed else "")
    parent = Parent("the parent", "its plan", FAILED) if mode == "repair" else None

    def asked(language: Language) -> PromptContext:
        contexts = PromptContexts(make_arm(arm, known, SelectionSettings()), Target(arch="cpu", language=language))
        return contexts.of_step(TASK, softmax_state, chosen, slot="1.0", sample=1, parent=parent)

    at_home = asked(Language.CPP)
    assert (bool(at_home.device_experience), bool(at_home.elsewhere)) == (shown, False)
    elsewhere = asked(Language.CUDA)  # of which nothing is known on this device
    assert (bool(elsewhere.device_experience), bool(elsewhere.elsewhere)) == (False, shown)


KERNEL = "__global__ void f(float* x) { x[threadIdx.x] = 1; }"
SHARED = "__global__ void f(float* x) { __shared__ float s[32]; s[1] = 2; x[threadIdx.x] = s[1]; }"
TORCH = "import torch\ny = torch.relu(torch.matmul(a, b))"


@pytest.mark.parametrize(
    ("parent", "child"), [(KERNEL, SHARED), (SHARED, KERNEL), (TORCH, SHARED), (SHARED, TORCH), (KERNEL, KERNEL)]
)
def test_what_the_builder_writes_from_features_alone_is_auto_generated(parent: str, child: str) -> None:
    text = written(difference(parent, child), parent, child)
    assert auto_generated(text), text


@pytest.mark.parametrize(
    "said", ["Introduce shared memory so that each row is read once.", "Drop the second pass", "Use float4 loads"]
)
def test_what_somebody_wrote_is_not_auto_generated(said: str) -> None:
    assert not auto_generated(said)
