from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.memory.attention import StrategyScore
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.applicability import barred, inapplicable
from optimizer.arms import ArmContext, make_arm
from optimizer.selection import SelectionSettings, usable_strategies


def test_constants_are_left_to_a_program(softmax_state: State) -> None:
    assert "program" in inapplicable("parameter_tuning", softmax_state)


@pytest.mark.parametrize("direction", ["instruction_throughput", "occupancy", "latency_hiding"])
def test_what_changes_a_kernel_waits_until_there_is_one(direction: str, softmax_state: State) -> None:
    on_gpu = replace(softmax_state, arch="sm_90")
    assert "no kernel yet" in inapplicable(direction, replace(on_gpu, runtime_us=None))
    assert inapplicable(direction, on_gpu) == ""


@pytest.mark.parametrize("direction", ["build_fix", "correctness_fix", "diagnosis"])
def test_mending_and_examining_are_no_ways_to_get_faster(direction: str, softmax_state: State) -> None:
    assert inapplicable(direction, softmax_state)


def test_directions_of_another_kind_of_device_are_left_out(softmax_state: State) -> None:
    assert "sm_90" in inapplicable("cpu_parallelism", replace(softmax_state, arch="sm_90"))
    assert inapplicable("cpu_parallelism", softmax_state) == ""
    assert "cpu" in inapplicable("occupancy", softmax_state)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_narrower_numbers_are_barred_where_the_task_is_wide(dtype: str, softmax_state: State) -> None:
    wide = replace(softmax_state, arch="sm_90", dtype=dtype)
    assert barred("precision.half_precision", wide)
    assert barred("precision.fp8_quantization", wide)
    assert not barred("precision.half_precision", replace(wide, dtype="float16"))


def test_tensor_cores_are_open_to_wide_tasks_because_split_operands_keep_their_precision(softmax_state: State) -> None:
    on_gpu = replace(softmax_state, arch="sm_90", dtype="float32", family="matmul")
    assert not barred("precision.tensor_cores", on_gpu)
    assert inapplicable("precision", on_gpu) == ""
    assert "float32" in inapplicable("precision", replace(on_gpu, arch="cpu"))


@pytest.mark.parametrize(("family", "pointless"), [("reduction", True), ("elementwise", True), ("fusion", False)])
def test_matrix_units_are_for_operators_with_products(family: str, pointless: bool, softmax_state: State) -> None:
    assert barred("precision.tensor_cores", replace(softmax_state, family=family)) is pointless


def test_what_hands_the_work_back_is_never_offered(memory: Memory, softmax_state: State) -> None:
    renamed = replace(memory.strategies[0], strategy_id="library.library_call")
    score = StrategyScore(strategy=renamed, mean=9.0, spread=0.1, effective_n=9.0, holds=True)
    assert usable_strategies((score,), SelectionSettings(), softmax_state) == ()
    assert usable_strategies((replace(score, strategy=memory.strategies[0]),), SelectionSettings(), softmax_state)


def test_a_direction_that_the_taxonomy_does_not_know_is_never_excluded(softmax_state: State) -> None:
    assert inapplicable("found_7", replace(softmax_state, runtime_us=None)) == ""


@pytest.mark.parametrize("name", ["htam", "flat", "bandit"])
def test_no_arm_chooses_what_is_inapplicable(name: str, memory: Memory, softmax_state: State) -> None:
    renamed = {"fusion": "latency_hiding"}
    directions = tuple(
        replace(item, direction_id=renamed.get(item.direction_id, item.direction_id)) for item in memory.directions
    )
    strategies = tuple(
        replace(item, direction_id=renamed.get(item.direction_id, item.direction_id)) for item in memory.strategies
    )
    odd = replace(memory, directions=directions, strategies=strategies)
    arm = make_arm(name, odd, SelectionSettings(explore=0.5))
    first = replace(softmax_state, runtime_us=None, log2_speedup=None)
    chosen = {arm.choose(ArmContext(state=first, seed=str(number))).direction for number in range(20)}
    assert "latency_hiding" not in chosen
