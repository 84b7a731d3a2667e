from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.trajectory import Step, Trajectory, TrustFlag
from builder.describe.glossary import find_terms
from builder.describe.steps import DescribedStep, describe

VECTORIZED = """
// four elements per thread with vectorized float4 loads
__global__ void scale(const float* __restrict__ x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = reinterpret_cast<const float4*>(x)[i];
    if (i < n) y[i] = 2.0f * v.x;
}
"""

SCALAR = """
#include <cmath>
void run(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
}
"""
SIMD = SCALAR.replace("    for", "    #pragma omp simd\n    for")
POLYNOMIAL = """
#include <cmath>
static inline float polynomial(float v) {
    float p = 0.04f;
    p = p * v + 0.16f;
    p = p * v + 0.5f;
    p = p * v + 1.0f;
    return p * v + 1.0f;
}
void run(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = polynomial(x[i]);
}
"""

Make = Callable[..., Step]
MakeTrajectory = Callable[..., Trajectory]


def last(make_trajectory: MakeTrajectory, *steps: Step, **kwargs: str) -> DescribedStep:
    return [*describe(make_trajectory(*steps, **kwargs))][-1]


def test_every_step_is_described_in_order(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    described = [*describe(make_trajectory(make_step("0"), make_step("1", "0"), make_step("2", "0")))]
    assert [item.step.step_id for item in described] == ["0", "1", "2"]
    assert described[0].parent is None
    assert described[2].parent is not None
    assert described[2].parent.step_id == "0"


def test_a_plan_that_the_code_shows_is_followed_and_kept(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    child = make_step("1", "0", code=VECTORIZED, plan="Use float4 loads to move 16 bytes at once.")
    found = last(make_trajectory, make_step("0"), child)
    assert found.followed is True
    assert found.text.startswith("Use float4 loads")
    assert "vector_load" in found.added


def test_a_plan_to_vectorise_a_loop_is_followed_by_vector_code_of_a_cpu(
    make_step: Make, make_trajectory: MakeTrajectory
) -> None:
    child = make_step("1", "0", code=SIMD, plan="Write the inner loop so that it vectorises at full width.")
    found = last(make_trajectory, make_step("0", code=SCALAR), child)
    assert found.followed is True
    assert "simd" in find_terms(found.text)


def test_what_replaces_something_is_promised_and_not_dropped(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    child = make_step("1", "0", code=POLYNOMIAL, plan="Replace the library function by a polynomial.")
    assert last(make_trajectory, make_step("0", code=SCALAR), child).followed is True
    back = make_step("1", "0", code=SCALAR, plan="Replace the polynomial by the library function.")
    assert last(make_trajectory, make_step("0", code=POLYNOMIAL), back).followed is None


def test_a_plan_that_the_code_denies_is_flagged_and_replaced(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    child = make_step("1", "0", code=VECTORIZED, plan="Use tensor cores through WMMA.")
    found = last(make_trajectory, make_step("0"), child)
    assert found.followed is False
    assert TrustFlag.PLAN_NOT_FOLLOWED in found.step.flags
    assert "tensor" not in found.text.lower()
    assert "vector load" in found.text


def test_a_plan_with_unchanged_code_is_not_followed(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    found = last(make_trajectory, make_step("0"), make_step("1", "0", plan="Rewrite everything."))
    assert found.followed is False
    assert found.text == "Resubmit the parent unchanged."


def test_a_plan_about_nothing_visible_is_neither(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    child = make_step("1", "0", code=VECTORIZED, plan="Make it better.")
    found = last(make_trajectory, make_step("0"), child)
    assert found.followed is None
    assert TrustFlag.PLAN_NOT_FOLLOWED not in found.step.flags


def test_a_plan_to_change_the_block_size_is_followed_by_a_new_number(
    make_step: Make, make_trajectory: MakeTrajectory
) -> None:
    parent = make_step("0", code="__global__ void k() {}\nvoid run() { k<<<10, 128>>>(); }")
    child = make_step(
        "1", "0", code="__global__ void k() {}\nvoid run() { k<<<5, 256>>>(); }", plan="Use a block size of 256."
    )
    assert last(make_trajectory, parent, child).followed is True


def test_without_a_plan_the_text_is_written_from_the_difference(
    make_step: Make, make_trajectory: MakeTrajectory
) -> None:
    found = last(make_trajectory, make_step("0"), make_step("1", "0", code=VECTORIZED))
    assert "vector load" in found.text
    assert "four elements per thread with vectorized float4 loads" in found.text


def test_a_chinese_plan_is_kept_and_checked(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    child = make_step("1", "0", code=VECTORIZED, plan="使用向量化加载提高带宽利用率")
    found = last(make_trajectory, make_step("0"), child)
    assert found.followed is True
    assert found.text == "使用向量化加载提高带宽利用率"


def test_the_state_is_that_of_the_parent(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    parent = make_step(
        "0", runtime_us=50.0, baseline_us=100.0, profile={"DRAMThroughput": 80.0, "ComputeSMThroughput": 20.0}
    )
    state = last(
        make_trajectory, parent, make_step("1", "0", code=VECTORIZED, runtime_us=25.0, baseline_us=100.0)
    ).state
    assert state.family == "elementwise"
    assert state.arch == "sm_80"
    assert state.runtime_us == 50.0
    assert state.log2_speedup == pytest.approx(1.0)
    assert state.bottleneck is Bottleneck.MEMORY
    assert state.fraction_of_bound == pytest.approx(0.8)
    assert "boundary_check" in state.features
    assert "vector_load" not in state.features
    assert state.history == ()


def test_tries_stagnation_and_progress_follow_the_lineage(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    described = list(
        describe(
            make_trajectory(
                make_step("0", runtime_us=80.0),
                make_step("1", "0", runtime_us=40.0),
                make_step("2", "1", outcome=Outcome.WRONG_RESULT, error="max difference 3"),
                make_step("3", "1", runtime_us=60.0),
                make_step("4", "3", runtime_us=10.0),
            )
        )
    )
    assert [item.state.step for item in described] == [0, 0, 1, 2, 3]
    assert [item.state.stagnation for item in described] == [0, 0, 0, 1, 2]
    assert described[3].state.last_outcome is Outcome.WRONG_RESULT
    assert described[4].state.last_outcome is Outcome.CORRECT
    assert described[4].state.log2_progress == pytest.approx(math.log2(80 / 60))


def test_ratios_from_the_reference_give_a_speedup(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    reference = make_step("0", code="import torch\nx = torch.relu", language=Language.TORCH)
    first = make_step("1", "0", code=VECTORIZED, ratio=4.0)
    found = last(make_trajectory, reference, first, make_step("2", "1", ratio=2.0))
    assert found.state.log2_speedup == pytest.approx(2.0)


def test_an_unknown_device_and_no_profile_leave_the_state_unknown(
    make_step: Make, make_trajectory: MakeTrajectory
) -> None:
    state = last(make_trajectory, make_step("0"), make_step("1", "0"), device="a thing").state
    assert (state.arch, state.bottleneck, state.size) == ("unknown", Bottleneck.UNKNOWN, "unknown")
    assert state.fraction_of_bound is None


def test_without_a_profile_the_size_is_that_of_the_inputs(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    reference = "import torch\n\ndef get_inputs():\n    return [torch.rand(4096, 4096)]\n"
    bare = make_trajectory(make_step("0"), make_step("1", "0"), device="never heard of")
    (_, child) = describe(replace(bare, reference=reference))
    assert child.state.size == "medium"


@given(st.text(max_size=300), st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_plan_and_code_are_described(
    make_step: Make, make_trajectory: MakeTrajectory, plan: str, code: str
) -> None:
    found = last(make_trajectory, make_step("0"), make_step("1", "0", plan=plan, code=code))
    assert found.text.strip()


def test_torch_operations_that_gave_way_to_a_kernel_are_said_to_be_fused(
    make_step: Make, make_trajectory: MakeTrajectory
) -> None:
    reference = make_step("0", code="import torch\ny = torch.relu(torch.matmul(a, b))", language=Language.TORCH)
    found = last(make_trajectory, reference, make_step("1", "0", code=VECTORIZED))
    assert found.text.startswith("Fuse torch matmul, torch activation into one own cuda kernel; introduce vector load")


def test_a_routine_comment_is_not_taken_into_the_text(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    code = VECTORIZED.replace("// four elements", "// Ensure the input is contiguous\n// four elements")
    found = last(make_trajectory, make_step("0"), make_step("1", "0", code=code))
    assert "contiguous" not in found.text
    assert "four elements" in found.text


def test_changed_numbers_alone_are_called_tuning(make_step: Make, make_trajectory: MakeTrajectory) -> None:
    parent, child = (
        make_step(str(row), "0" if row else None, code=VECTORIZED.replace("2.0f", f"{row}3.0f")) for row in (0, 1)
    )
    assert last(make_trajectory, parent, child).text == "Tune sizes and constants."
