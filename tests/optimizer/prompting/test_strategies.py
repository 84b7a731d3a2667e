"""Templates and recipes go where they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.memory.htg import Memory
from artifacts.memory.records import Condition, Excerpt, Strategy
from optimizer.prompting.strategies import StrategyTexts

RULE = Condition(field="family", op="==", value="matmul", words="for matrix products")


def transition(memory: Memory, family: str) -> str:
    return next(item.transition_id for item in memory.transitions() if item.state.family == family)


def strategy(memory: Memory, *pieces: tuple[str, str], when: tuple[Condition, ...] = ()) -> tuple[Memory, Strategy]:
    """A memory whose first strategy learnt ``(family, code)`` pieces, best first."""
    excerpts = tuple(Excerpt(text=code, transition_id=transition(memory, family)) for family, code in pieces)
    said = tuple(replace(item, text=f"do {item.text}") for item in excerpts)
    changed = replace(
        memory.strategies[0], when=when, templates=excerpts, recipes=said, template=pieces[0][1], recipe=said[0].text
    )
    return replace(memory, strategies=(changed, *memory.strategies[1:])), changed


def fitting(found: tuple[Memory, Strategy], family: str, language: Language = Language.CUDA) -> Strategy:
    memory, one = found
    return StrategyTexts(memory, language).fitting(one, family)


def test_a_template_of_another_family_is_left_out_and_its_recipe_kept(memory: Memory) -> None:
    shown = fitting(strategy(memory, ("matmul", "tile(a, b);")), "scan")
    assert shown.template == ""
    assert shown.recipe == "do tile(a, b);"


def test_the_family_s_own_text_comes_before_a_better_one_of_others(memory: Memory) -> None:
    shown = fitting(strategy(memory, ("matmul", "tile(a, b);"), ("softmax", "row(x);")), "softmax")
    assert (shown.template, shown.recipe) == ("row(x);", "do row(x);")


def test_kin_is_better_than_nothing_and_worse_than_one_s_own(memory: Memory) -> None:
    known = strategy(memory, ("softmax", "row(x);"), ("reduction", "sum(x);"))
    assert fitting(known, "normalization").template == "row(x);"
    assert fitting(known, "reduction").template == "sum(x);"


def test_conditions_that_single_out_a_place_let_a_foreign_template_through(memory: Memory) -> None:
    assert fitting(strategy(memory, ("matmul", "tile(a, b);"), when=(RULE,)), "scan").template == "tile(a, b);"


@pytest.mark.parametrize(("language", "shown"), [(Language.CUDA, "row(x);"), (Language.TRITON, "tl.load(x)")])
def test_of_the_fitting_templates_the_first_in_the_wanted_language_is_shown(
    language: Language, shown: str, memory: Memory
) -> None:
    code = "__shared__ float x;" if language is Language.TRITON else "tl.load(x)"
    assert fitting(strategy(memory, ("softmax", code), ("softmax", shown)), "softmax", language).template == shown


def test_a_text_whose_transition_the_memory_has_forgotten_fits_nobody(memory: Memory) -> None:
    forgetful, one = strategy(memory, ("softmax", "row(x);"))
    forgetful = replace(forgetful, table=forgetful.table.slice(0, 0))
    assert StrategyTexts(forgetful, Language.CUDA).fitting(one, "softmax").template == ""


@pytest.mark.parametrize(
    ("language", "shown"), [(Language.CUDA, "do search(b);"), (Language.TRITON, "do triton.autotune")]
)
def test_a_recipe_about_triton_is_for_those_who_write_it(language: Language, shown: str, memory: Memory) -> None:
    known = strategy(memory, ("softmax", "triton.autotune"), ("matmul", "search(b);"))
    assert fitting(known, "softmax", language).recipe == shown


def test_somebody_s_python_is_no_template_for_a_kernel(memory: Memory) -> None:
    call, kernel = "return torch.matmul(A, B)", "row(x);"
    assert fitting(strategy(memory, ("softmax", call), ("softmax", kernel)), "softmax").template == kernel


def test_a_recipe_that_lists_features_gives_way_to_one_that_says_something(memory: Memory) -> None:
    known, one = strategy(memory, ("softmax", "a"), ("softmax", "b"))
    listed = replace(one, recipes=(replace(one.recipes[0], text="Introduce shared memory, unroll."), one.recipes[1]))
    assert StrategyTexts(known, Language.CUDA).fitting(listed, "softmax").recipe == "do b"


def test_without_a_sensible_recipe_there_is_none(memory: Memory) -> None:
    assert fitting(strategy(memory, ("softmax", "triton.autotune")), "softmax").recipe == ""
