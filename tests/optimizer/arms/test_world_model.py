"""The model's own list of intents: how it is edited, and which intent is taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.codec import decode, encode
from artifacts.trajectory import State
from optimizer.arms import ArmContext, Choice, make_arm
from optimizer.arms.intents import MOST, WINDOW, IntentEdit, edited, tried
from optimizer.arms.protocol import Intent, Said
from optimizer.arms.world_model import WorldModelArm, candidates
from optimizer.selection import SelectionSettings

STATE = State(family="softmax", arch="cpu", language=Language.CPP)
FUSE = Intent(number=1, text="fuse", priority=0.4)
TILE = Intent(number=2, text="tile", priority=0.9, difficulty=5)
PACK = Intent(number=3, text="pack", priority=0.6)


ARM = WorldModelArm(settings=SelectionSettings())


def choose(*intents: Intent, explore: float = 0.0, **context: Any) -> Choice:
    arm = make_arm("world-model", None, SelectionSettings(explore=explore))
    return arm.choose(ArmContext(state=STATE, intents=intents, **context))


def number(choice: Choice) -> int | None:
    return None if choice.intent is None else choice.intent.number


def test_an_empty_list_leaves_feedback_and_says_so() -> None:
    assert number(choose()) is None
    assert "feedback only" in choose().gate


def test_the_most_promising_intent_that_is_not_too_hard_is_taken() -> None:
    assert number(choose(FUSE, TILE, PACK)) == 3


def test_a_hard_intent_is_taken_when_nothing_else_is_open() -> None:
    assert number(choose(TILE)) == 2


def test_an_intent_that_was_begun_is_stayed_with_until_the_window_closes_it() -> None:
    intents = (FUSE, PACK)
    for count in range(WINDOW):
        intents = tried(intents, 1)
        assert number(choose(*intents)) == (1 if count + 1 < WINDOW else 3)
    assert "without improvement" in intents[0].closed


def test_an_improvement_ends_the_row_of_failures() -> None:
    intents = tried((Intent(number=1, text="fuse", tries=4, fruitless=4),), 1, program="3.0", gain=0.5)
    assert (intents[0].tries, intents[0].fruitless, intents[0].closed) == (5, 0, "")


def test_siblings_of_one_step_take_different_intents() -> None:
    first = choose(FUSE, PACK)
    assert number(choose(FUSE, PACK, taken=frozenset([first.label]))) == 1


def test_exploration_draws_among_open_intents_and_logs_exact_probabilities() -> None:
    choices = [choose(FUSE, PACK, explore=0.5, seed=str(count)) for count in range(200)]
    assert {(number(one), round(one.probability or 0, 6)) for one in choices} == {(3, 0.75), (1, 0.25)}


def test_a_choice_with_an_intent_survives_the_log() -> None:
    assert decode(Choice, encode(choose(FUSE))) == choose(FUSE)


def test_the_model_inserts_changes_and_closes() -> None:
    edits = [
        IntentEdit(text="  use  shared memory ", priority=0.7, difficulty=2),
        IntentEdit(number=1, priority=7.0, difficulty=9),
        IntentEdit(number=3, close=True),
        IntentEdit(number=99, close=True),
        IntentEdit(text="fuse"),
    ]
    found = edited((FUSE, TILE, PACK), edits)
    assert [(one.number, one.text) for one in found] == [
        (1, "fuse"),
        (2, "tile"),
        (3, "pack"),
        (4, "use shared memory"),
    ]
    assert (found[0].priority, found[0].difficulty, found[2].closed) == (1.0, 5, "closed by the model")


def test_what_is_closed_stays_closed() -> None:
    closed = edited((FUSE,), [IntentEdit(number=1, close=True)])
    assert edited(closed, [IntentEdit(number=1, priority=1.0)]) == closed


def test_a_model_that_never_stops_having_ideas_keeps_the_best() -> None:
    edits = [IntentEdit(text=f"idea {count}", priority=count / 100) for count in range(50)]
    found = edited((), edits)
    assert len(found) == MOST
    assert min(one.priority for one in found) == 0.38


_EDIT = st.builds(
    IntentEdit,
    number=st.none() | st.integers(-3, 20),
    text=st.text(max_size=8),
    priority=st.none() | st.floats(-2, 2),
    difficulty=st.none() | st.integers(-9, 9),
    close=st.booleans(),
)


@given(st.lists(_EDIT, max_size=40))
def test_any_edits_leave_a_list_with_numbers_of_its_own(edits: list[IntentEdit]) -> None:
    found = edited((), edits)
    assert len({one.number for one in found}) == len(found)
    assert len(candidates(found)) <= MOST


@pytest.mark.parametrize("wrong", [{"number": 0}, {"text": ""}, {"priority": 2.0}, {"difficulty": 6}])
def test_an_impossible_intent_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"intent|priority"):
        Intent(**({"number": 1, "text": "a"} | wrong))


def test_the_tree_is_edited_while_no_intent_is_under_way_and_not_again_in_the_same_step() -> None:
    begun = Intent(number=1, text="fuse", tries=1)
    edit = Said(role="intents", text="")
    assert ARM.question(ArmContext(state=STATE)) == "intents"
    assert ARM.question(ArmContext(state=STATE, said=(edit,))) == ""
    assert ARM.question(ArmContext(state=STATE, intents=(begun, PACK))) == ""
    assert ARM.question(ArmContext(state=STATE, intents=(PACK,))) == "intents"
    assert ARM.question(ArmContext(state=STATE, mode="repair")) == ""


def test_an_intent_starts_from_its_own_program_else_from_that_of_the_one_above() -> None:
    above = Intent(number=1, text="fuse", program="1.0", closed="done")
    under = Intent(number=2, text="tile", under=1)
    assert ARM.start(ArmContext(state=STATE, parent="4.0", intents=(above, under))) == "1.0"
    assert ARM.start(ArmContext(state=STATE, parent="4.0", intents=tried((above, under), 2, program="2.0"))) == "2.0"
    assert ARM.start(ArmContext(state=STATE, parent="4.0", intents=(PACK,))) == "4.0"


def test_an_intent_cannot_build_on_one_that_is_not_there() -> None:
    assert edited((), [IntentEdit(text="tile", under=7)])[0].under is None
