"""Edits of the model's own list, out of whatever it sends."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from optimizer.arms.intents import MOST_EDITS, IntentEdit, edited, parse_edits

CODE = "PLAN: go\n```python\nclass ModelNew:\n    pass\n```\n"
ITEMS = [
    {"intent": "fuse", "priority": 0.8, "difficulty": 2},
    {"number": 1, "priority": 0.1},
    {"number": 2, "close": True},
]


def answer(items: object) -> str:
    return f"{CODE}```json\n{json.dumps(items)}\n```\n"


def test_edits_are_read_from_the_last_block() -> None:
    assert parse_edits(answer(ITEMS)) == (
        IntentEdit(text="fuse", priority=0.8, difficulty=2),
        IntentEdit(number=1, priority=0.1),
        IntentEdit(number=2, close=True),
    )


def test_a_list_inside_an_object_is_read_as_well() -> None:
    assert parse_edits(answer({"intents": ITEMS})) == parse_edits(answer(ITEMS))


def test_an_answer_without_a_block_edits_nothing() -> None:
    assert parse_edits(CODE) == ()
    assert parse_edits(f"{CODE}```json\nnot json\n```") == ()


def test_what_has_the_wrong_kind_is_left_out_and_the_rest_kept() -> None:
    odd = [3, None, {}, {"intent": 5}, {"intent": " "}, {"intent": "a", "priority": "high", "difficulty": True}]
    assert parse_edits(answer(odd)) == (IntentEdit(text="a"),)
    assert parse_edits('```json\n[{"intent": "a", "priority": NaN}]\n```') == (IntentEdit(text="a"),)


def test_no_answer_holds_more_edits_than_a_list_can_use() -> None:
    assert len(parse_edits(answer([{"intent": f"idea {count}"} for count in range(99)]))) == MOST_EDITS


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["intent", "number", "priority"]), inner)
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_gives_edits_that_can_be_applied(data: object) -> None:
    edited((), parse_edits(answer(data)))
