from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from artifacts.features.techniques import Technique
from artifacts.measurement import Outcome
from artifacts.memory.edges import applicable, computed, moves_from
from artifacts.memory.htg import Memory
from artifacts.memory.records import Edge, Transition
from artifacts.memory.schemas import EDGES
from artifacts.memory.tables import record_rows, records_of
from artifacts.trajectory import State

MMA, TILE = Technique.TENSOR_MMA, Technique.REGISTER_TILE


@pytest.fixture
def steps(transitions: list[Transition]) -> list[Transition]:
    """Eight operators that climb from register tiles to tensor cores: twice as fast, on sm_90, one of them failing."""
    base = replace(transitions[1], flags=frozenset(), weight=1.0, parent_us=100.0, plan="use mma")
    made = []
    for number in range(8):
        failed = number == 7
        made.append(
            replace(
                base,
                transition_id=f"log/x/{number}",
                task=replace(base.task, task_id=f"own/-/{chr(97 + number)}_gemm"),
                state=replace(base.state, family="matmul" if number < 4 else "convolution", arch="sm_90"),
                outcome=Outcome.WRONG_RESULT if failed else Outcome.CORRECT,
                reward=None if failed else 1.0 + 0.02 * number,
                parent_sha256=f"{number:064x}",
                child_sha256=f"{number + 100:064x}",
                techniques=frozenset({TILE}),
                moves=("+tensor_mma",),
            )
        )
    cure = replace(
        made[0],
        transition_id="log/x/cure",
        parent_sha256=made[7].child_sha256,
        parent_us=None,
        moves=(),
        plan="Split operands.",
    )
    return [*made, cure]


def edge_of(memory: Memory, arch: str = "", family: str = "") -> Edge:
    found = [edge for edge in memory.edges if (edge.arch, edge.bound, edge.family) == (arch, "", family)]
    assert [edge.move for edge in found] == ["+tensor_mma"]
    return found[0]


def test_an_edge_tells_what_a_move_did_over_operators(steps: list[Transition], build: Callable[..., Memory]) -> None:
    edge = edge_of(build(steps), "sm_90")
    assert (edge.rung, edge.attempts, edge.operators, edge.effect.tasks) == ("register_tile", 8, 8, 7)
    assert 0.8 < edge.effect.low < edge.effect.mean < edge.effect.high < 1.3
    assert edge.failures == ("1 wrong_result",)
    assert edge.cures == ("Split operands.",)


def test_a_family_has_an_edge_of_its_own_and_two_operators_have_none(
    steps: list[Transition], build: Callable[..., Memory]
) -> None:
    assert edge_of(build(steps), "sm_90", "matmul").operators == 4
    assert build(steps[:2]).edges == ()


def test_steps_from_a_parent_without_a_time_tell_no_effect(
    steps: list[Transition], build: Callable[..., Memory]
) -> None:
    assert build([replace(step, parent_us=None) for step in steps]).edges == ()


def test_a_filter_computes_edges_anew_and_drops_excerpts_with_their_source(
    steps: list[Transition], build: Callable[..., Memory]
) -> None:
    memory = build(steps)
    memory = replace(memory, edges=computed(memory.table, memory.columns, {"log/x/3": "- a\n+ b"}))
    assert edge_of(memory, "sm_90").excerpt is not None
    kept = memory.filter(exclude_tasks=["own/-/d_gemm"])
    assert edge_of(kept, "sm_90").operators == 7
    assert edge_of(kept, "sm_90").excerpt is None


def test_edges_survive_their_table(steps: list[Transition], build: Callable[..., Memory]) -> None:
    memory = build(steps)
    edges = computed(memory.table, memory.columns, {"log/x/3": "- a\n+ b"})
    assert records_of(Edge, record_rows(edges, EDGES)) == edges


def test_only_moves_that_the_kernel_and_the_device_allow_apply() -> None:
    assert applicable("+tensor_mma", frozenset({TILE}), "sm_90")
    assert not applicable("+tensor_mma", frozenset({MMA}), "sm_90")
    assert not applicable("+tensor_wgmma", frozenset({MMA}), "sm_80")
    assert not applicable("+simd", frozenset(), "sm_90")
    assert applicable("+simd", frozenset(), "cpu")
    assert not applicable("+warp_shuffle", frozenset(), "cpu")
    assert applicable("-register_tile", frozenset({TILE}), "sm_90")


def test_moves_are_found_by_rung_and_the_device_at_hand_comes_before_any(
    steps: list[Transition], build: Callable[..., Memory]
) -> None:
    memory = build(steps)
    state = replace(steps[0].state, family="fusion")
    assert [(edge.move, edge.arch) for edge in moves_from(memory.edges, frozenset({TILE}), state)] == [
        ("+tensor_mma", "sm_90")
    ]
    assert moves_from(memory.edges, frozenset(), state) == ()
    other: State = replace(state, arch="sm_80")
    assert [edge.arch for edge in moves_from(memory.edges, frozenset({TILE}), other)] == [""]
