"""Answers that edit their parent instead of repeating it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadAnswerError
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.answer import ParsedAnswer, parse_answer
from optimizer.prompting.edits import Edit, applied, read_edits

PARENT = """import torch

BLOCK = 128
GRID = 128


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
"""


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"


def parse(text: str, parent: str = PARENT) -> ParsedAnswer:
    return parse_answer(LlmAnswer(text=text, model="m"), parent)


def test_edits_change_the_lines_they_name_and_no_other() -> None:
    found = parse(f"PLAN: wider\nSTRATEGY: none\n{block('BLOCK = 128', 'BLOCK = 256')}\n")
    assert found.edited
    assert found.plan == "wider"
    assert found.candidate.source == PARENT.replace("BLOCK = 128", "BLOCK = 256")


def test_fences_around_edits_and_words_between_them_do_not_matter() -> None:
    edits = [block("BLOCK = 128", "BLOCK = 256"), block("GRID = 128", "GRID = 64\nWARPS = 4")]
    found = parse(f"PLAN: both\n```\n{edits[0]}\n```\nand\n```python\n{edits[1]}\n```")
    assert found.candidate.source == PARENT.replace("BLOCK = 128", "BLOCK = 256").replace(
        "GRID = 128", "GRID = 64\nWARPS = 4"
    )


def test_an_edit_with_an_empty_second_part_removes_lines() -> None:
    assert applied(PARENT, read_edits("<<<<<<< SEARCH\nGRID = 128\n=======\n>>>>>>> REPLACE")) == PARENT.replace(
        "GRID = 128\n", ""
    )


def test_a_whole_file_is_taken_where_edits_were_asked_for() -> None:
    found = parse(f"PLAN: new\n```python\n{PARENT.replace('x', 'y')}```")
    assert not found.edited
    assert "forward(self, y)" in found.candidate.source


def test_edits_are_no_answer_where_a_file_was_asked_for() -> None:
    with pytest.raises(BadAnswerError, match="no code block"):
        parse(block("BLOCK = 128", "BLOCK = 256"), parent="")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block("BLOCK = 64", "BLOCK = 256"), "occurs 0 times"),
        (block("", "BLOCK = 256"), "searches for nothing"),
        (block("= 128", "= 256"), "occurs 0 times"),
        (block("BLOCK = 128\nGRID = 128", "A = 1") + "\n" + block("GRID = 128", "B = 1"), "two edits change line 4"),
        ("<<<<<<< SEARCH\nBLOCK = 128\n=======\nBLOCK = 256\n", "lacks its line"),
        (block("        return x", "        return x x"), "syntax error in line 9"),
        (block("class ModelNew(torch.nn.Module):", "class Other(torch.nn.Module):"), "does not define class ModelNew"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(BadAnswerError, match=reason):
        parse(text)


def test_an_anchor_that_occurs_twice_is_refused() -> None:
    with pytest.raises(BadAnswerError, match="occurs 2 times"):
        applied("a\nb\na\n", [Edit(("a",), ("c",))])


@given(st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=12), st.data())
def test_what_is_applied_differs_only_where_it_was_edited(lines: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    edit = Edit(tuple(lines[start : start + 2]), ("new",))
    try:
        found = applied("\n".join(lines), [edit])
    except BadAnswerError:
        return
    assert found.split("\n") == [*lines[:start], "new", *lines[start + 2 :]]
