"""Designed experiments, the archive, the macro policy and the drawn parents of evolution."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.features import FEATURES
from artifacts.features.techniques import ABOUT, Technique
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.arms import ArmContext, Intent, Said, make_arm
from optimizer.arms.archive import AXES, archive, cell_of
from optimizer.arms.experiments import three, waiting
from optimizer.arms.macro import learned
from optimizer.selection import SelectionSettings
from tests.optimizer.arms.members import member

STATE = State(family="softmax", arch="cpu", language=Language.CPP)
SCIENTIST = make_arm("experiments", None, SelectionSettings())
DESIGNED = [
    {"intent": "safe", "low": 1.1, "high": 1.2, "priority": 0.1},
    {"intent": "bold", "low": 0.5, "high": 3.0, "priority": 0.3},
    {"intent": "new", "low": 0.6, "high": 1.3, "priority": 0.9},
    {"intent": "dull", "low": 0.9, "high": 1.0, "priority": 0.0},
]
PAIR = (member("0.0"), member("1.0", "0.0", us=50.0), member("2.0", us=None))


def said(role: str, data: object) -> Said:
    return Said(role=role, text=f"```json\n{json.dumps(data)}\n```")


def test_of_the_experiments_designed_the_newest_the_boldest_and_the_safest_are_run() -> None:
    found = SCIENTIST.heard((), said("design", DESIGNED))
    assert [intent.text for intent in waiting(found)] == ["safe", "bold", "new"]
    assert [intent.text for intent in three(waiting(found))] == ["new", "bold", "safe"]
    assert [intent.closed for intent in found if intent.text == "dull"] == ["designed, not run"]


def test_a_selector_is_asked_before_the_designer_once_there_is_something_to_select() -> None:
    assert SCIENTIST.question(ArmContext(state=STATE, mode="first")) == "design"
    assert SCIENTIST.question(ArmContext(state=STATE, members=PAIR)) == "select"
    selected = (said("select", {"base": "0.0"}),)
    assert SCIENTIST.question(ArmContext(state=STATE, members=PAIR, said=selected)) == "design"
    waits = (Intent(number=1, text="fuse"),)
    assert SCIENTIST.question(ArmContext(state=STATE, members=PAIR, intents=waits)) == ""


@pytest.mark.parametrize(("base", "start"), [("0.0", "0.0"), ("2.0", "1.0"), ("9.9", "1.0"), (None, "1.0")])
def test_an_experiment_starts_from_the_selected_candidate_if_it_is_a_correct_one(base: str | None, start: str) -> None:
    context = ArmContext(state=STATE, parent="1.0", members=PAIR, said=(said("select", {"base": base}),))
    assert SCIENTIST.start(context) == start


def test_each_experiment_is_run_once_and_siblings_run_different_ones() -> None:
    intents = SCIENTIST.heard((), said("design", DESIGNED))
    first = SCIENTIST.choose(ArmContext(state=STATE, intents=intents))
    second = SCIENTIST.choose(ArmContext(state=STATE, intents=intents, taken=frozenset({first.label})))
    assert first.intent is not None
    assert second.intent is not None
    assert first.intent.number != second.intent.number
    done = tuple(replace(intent, tries=1) for intent in intents)
    assert "no experiment" in SCIENTIST.choose(ArmContext(state=STATE, intents=done)).gate


def test_the_axes_of_the_archive_are_techniques_that_programs_find() -> None:
    assert set().union(*AXES.values()) <= set(FEATURES)


def test_the_archive_keeps_the_fastest_of_each_kind_and_not_only_the_fastest() -> None:
    tiled, shuffled = frozenset({"shared_memory"}), frozenset({"warp_shuffle"})
    members = (
        member("0.0", us=90.0, features=tiled),
        member("1.0", us=50.0, features=tiled),
        member("2.0", us=95.0, features=shuffled),
        member("3.0", us=10.0, features=shuffled, alive=False),
    )
    assert {one.step_id for one in archive(members).values()} == {"1.0", "2.0"}
    assert cell_of(members[0]) != cell_of(members[2])
    arm = make_arm("quality-diversity", None, SelectionSettings())
    contexts = [ArmContext(state=STATE, parent="1.0", members=members, seed=str(number)) for number in range(40)]
    assert {arm.start(context) for context in contexts} == {"1.0", "2.0"}


def test_the_policy_prefers_what_the_memory_s_transitions_gained_by(
    memory_of_moves: Memory, softmax_state: State
) -> None:
    policy = learned(memory_of_moves)
    assert policy is not None
    for family, helps in (("softmax", "+polynomial"), ("reduction", "+prefetch"), ("matmul", "+register_tile")):
        chances = policy.probabilities(replace(softmax_state, family=family))
        assert max(chances, key=chances.__getitem__) == helps
        assert sum(chances.values()) == pytest.approx(1)


def test_a_move_is_drawn_as_the_log_says_and_told_in_the_words_of_its_technique(
    memory_of_moves: Memory, softmax_state: State
) -> None:
    arm = make_arm("macro", memory_of_moves, SelectionSettings())
    choices = [arm.choose(ArmContext(state=softmax_state, seed=str(number))) for number in range(200)]
    shares = {choice.move: choice.probability for choice in choices}
    assert set(shares) == {"+polynomial", "+prefetch"}  # a register tile is for products
    for move, chance in shares.items():
        assert chance is not None
        assert abs(sum(choice.move == move for choice in choices) / 200 - chance) < 0.12
    assert {choice.instructions for choice in choices if choice.move == "+prefetch"} == {
        ABOUT[Technique.PREFETCH].instruction
    }
    sibling = arm.choose(ArmContext(state=softmax_state, taken=frozenset({"+polynomial"})))
    assert (sibling.move, sibling.label, sibling.probability) == ("+prefetch", "+prefetch", 1.0)


def test_a_move_that_was_made_is_not_told_again(memory_of_moves: Memory, softmax_state: State) -> None:
    arm = make_arm("macro", memory_of_moves, SelectionSettings())
    held = replace(softmax_state, features=frozenset({"polynomial_approximation"}))
    assert {arm.choose(ArmContext(state=held, seed=str(number))).move for number in range(40)} == {"+prefetch"}


@pytest.mark.parametrize(("runtime_us", "moves"), [(None, True), (100.0, False)])
def test_without_a_kernel_or_without_moves_the_gate_is_closed(
    runtime_us: float | None, moves: bool, memory: Memory, memory_of_moves: Memory, softmax_state: State
) -> None:
    arm = make_arm("macro", memory_of_moves if moves else memory, SelectionSettings())
    choice = arm.choose(ArmContext(state=replace(softmax_state, runtime_us=runtime_us)))
    assert choice.gate
    assert not choice.move
    assert not choice.instructions


def test_evolution_draws_faster_parents_more_often_and_never_a_failed_one() -> None:
    arm = make_arm("verified-evolution", None, SelectionSettings())
    contexts = [ArmContext(state=STATE, parent="1.0", members=PAIR, seed=str(number)) for number in range(300)]
    starts = [arm.start(context) for context in contexts]
    assert set(starts) == {"0.0", "1.0"}
    assert 160 < starts.count("1.0") < 240
