"""Moves in choices and prompts."""

from __future__ import annotations

from dataclasses import replace

from artifacts.candidate import Language
from artifacts.memory.records import Edge, Effect
from artifacts.trajectory import State
from optimizer.prompting.request import move_line
from optimizer.selection import SelectionSettings, usable_moves

EDGE = Edge(
    move="+tensor_mma",
    rung="register_tile",
    arch="sm_90",
    bound="",
    family="matmul",
    effect=Effect(mean=1.0, low=0.5, high=1.5, n=9, tasks=5, failures=1),
    attempts=10,
    operators=5,
    sources=1,
    failures=("1 wrong_result",),
    cures=("Split the operands.",),
)
STATE = State(
    family="matmul",
    arch="sm_90",
    language=Language.CUDA,
    runtime_us=10.0,
    features=frozenset({"accumulator_tile"}),
)


def test_only_a_sure_gain_passes_and_only_where_there_is_a_kernel() -> None:
    unsure = replace(EDGE, effect=replace(EDGE.effect, low=-0.1))
    few = replace(EDGE, effect=replace(EDGE.effect, tasks=2))
    settings = SelectionSettings()
    assert usable_moves([EDGE], settings, STATE) == (EDGE,)
    assert usable_moves([unsure], settings, STATE) == ()
    assert usable_moves([few], settings, STATE) == ()
    assert usable_moves([EDGE], settings, replace(STATE, runtime_us=None)) == ()
    assert usable_moves([EDGE], replace(settings, moves=0), STATE) == ()


def test_the_device_at_hand_comes_first() -> None:
    elsewhere = replace(EDGE, move="+bank_layout", rung="plain", arch="", effect=replace(EDGE.effect, mean=1.4))
    assert [edge.arch for edge in usable_moves([elsewhere, EDGE], SelectionSettings(), STATE)] == ["sm_90", ""]


def test_a_line_says_what_to_do_where_it_gained_and_how_it_failed() -> None:
    line = move_line(EDGE)
    assert "mma.sync" in line
    assert "From register tile, matmul, sm_90: it gained 2.00x (1.41x to 2.83x) over 5 operators" in line
    assert "1 of 10 tries failed" in line
    assert "Split the operands." in line
