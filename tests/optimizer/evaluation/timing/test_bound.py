from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import torch

from optimizer.evaluation.sandbox.torch_state import GlobalState
from optimizer.evaluation.verify.bound import (
    Ceilings,
    Work,
    cached_ceilings,
    count_work,
    improved_ceilings,
    speed_of_light,
)

DEVICE = Ceilings(
    device="d", bytes_per_s=1e12, cache_bytes=1 << 20, cache_bytes_per_s=4e12, flops_per_s={"float32": 1e13}
)


def test_an_elementwise_task_reads_its_input_and_writes_its_output_once() -> None:
    work = count_work(torch.relu, [torch.randn(1000, 1000)])
    assert (work.read_bytes, work.written_bytes, work.flops) == (4_000_000, 4_000_000, 0)


def test_parameters_that_are_read_count_and_unused_ones_do_not() -> None:
    model = torch.nn.Linear(64, 32, bias=False)
    unused = torch.nn.Parameter(torch.randn(10_000))
    work = count_work(model, [torch.randn(8, 64)], [*model.parameters(), unused])
    assert work.read_bytes == 4 * (8 * 64 + 64 * 32)
    assert work.flops == 2 * 8 * 64 * 32


def test_an_expanded_input_is_read_once() -> None:
    work = count_work(torch.relu, [torch.randn(1, 1000).expand(50, 1000)])
    assert work.read_bytes <= 4000


def test_zeros_among_the_inputs_need_not_be_read() -> None:
    work = count_work(torch.matmul, [torch.eye(64), torch.ones(64, 64)])
    assert work.read_bytes == 4 * (64 + 64 * 64)


def test_a_time_below_what_the_bytes_need_is_impossible_and_one_above_is_not() -> None:
    bound = speed_of_light(Work(read_bytes=10**9, written_bytes=10**9, flops=0), DEVICE)
    assert bound.limited_by == "memory"
    assert bound.is_impossible(1000.0)
    assert not bound.is_impossible(2000.0)
    assert bound.fraction(4000.0) == 0.5


def test_arithmetic_bounds_what_moves_little() -> None:
    bound = speed_of_light(Work(read_bytes=100, written_bytes=100, flops=10**12), DEVICE)
    assert bound.limited_by == "compute"
    assert bound.time_us == 1e5


def test_a_kernel_may_do_less_arithmetic_than_the_reference() -> None:
    bound = speed_of_light(Work(read_bytes=10**9, written_bytes=0, flops=10**12), DEVICE)
    assert not bound.is_impossible(50_000.0)
    assert bound.seen_with(99_000.0) == bound
    seen = bound.seen_with(50_000.0)
    assert (seen.limited_by, seen.time_us, seen.fraction(50_000.0)) == ("memory", 1000.0, 0.02)


def test_whatever_a_baseline_changes_is_as_before_afterwards() -> None:
    before = GlobalState.take("cpu")
    with GlobalState.preserved("cpu"):
        torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(3)
        os.environ["LEFT_BEHIND"] = "1"
    after = GlobalState.take("cpu")
    assert dict(after.flags) == dict(before.flags)
    assert torch.equal(after.generators["torch"], before.generators["torch"])
    assert "LEFT_BEHIND" not in os.environ


def test_the_best_of_several_measurements_is_kept_for_each_ceiling(tmp_path: Path) -> None:
    fast_memory = dataclasses.replace(DEVICE, bytes_per_s=3e12, flops_per_s={"float32": 1e12})
    fast_arithmetic = dataclasses.replace(DEVICE, bytes_per_s=1e12, flops_per_s={"float32": 2e13})
    improved_ceilings("cpu", tmp_path, lambda backend: fast_memory)
    best = improved_ceilings("cpu", tmp_path, lambda backend: fast_arithmetic)
    assert (best.bytes_per_s, best.flops_per_s["float32"], best.rounds) == (3e12, 2e13, 2)


def test_ceilings_measured_often_enough_are_not_measured_again(tmp_path: Path) -> None:
    for _ in range(3):
        improved_ceilings("cpu", tmp_path, lambda backend: DEVICE)
    assert cached_ceilings("cpu", tmp_path) == dataclasses.replace(DEVICE, rounds=3)
