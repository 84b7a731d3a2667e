"""Tasks as large as KernelBench publishes them on a CUDA device: they fit, and who is far behind leaves quickly.

Run with ``pytest -m gpu -n 8 --dist loadgroup tests/gpu``: the tests of one group take turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.measurement import DoubtKind, Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.devices import nvidia_devices
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("gpu"),
]
GIB = 1 << 30
TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand({rows}, {columns}) - 0.5]


def get_init_inputs():
    return []
"""
CANDIDATE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="published_relu",
    cpp_sources="torch::Tensor relu_own(torch::Tensor x);",
    cuda_sources=r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void relu_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t n) {{
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  {delay}
  y[i] = fmaxf(value, 0.0f);
}}
torch::Tensor relu_own(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  int64_t n = x.numel();
  relu_kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}}
""",
    functions=["relu_own"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.relu_own(x)
'''
SPINNING = "for (int k = 0; k < 300; ++k) value = ((const volatile float*)x)[i];"
ENDLESS = "for (volatile int k = 0; k >= 0; k = 1) { }"


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    local = LocalEvaluator(settings=LocalSettings(cache=tmp_path_factory.mktemp("cache")))
    yield local
    local.close()


def job(task: str, candidate: str) -> EvaluationJob:
    return EvaluationJob(
        job_id="t",
        task_id="t",
        task_source=task,
        candidate_source=candidate,
        backend="cuda",
        seed=7,
        settings=EvaluationSettings(baselines=("eager",), run_timeout_s=60.0),
    )


def judged(evaluator: LocalEvaluator, *, rows: int, columns: int, delay: str = "") -> tuple[Measurement, float]:
    """The measurement, and the seconds from the built candidate to the verdict."""
    start = time.monotonic()
    wanted = job(TASK.format(rows=rows, columns=columns), CANDIDATE.format(delay=delay))
    ((_, found),) = evaluator.evaluate([wanted])
    return found, time.monotonic() - start - found.build_s


def total_bytes() -> int:
    return nvidia_devices()[0].memory_bytes


def test_an_output_of_more_than_a_gibibyte_is_judged(evaluator: LocalEvaluator) -> None:
    found, _ = judged(evaluator, rows=1 << 14, columns=1 << 15)  # 2 GiB
    assert found.outcome is Outcome.CORRECT, found.error


@pytest.mark.skipif(not nvidia_devices() or total_bytes() < 76 * GIB, reason="the device has less than 76 GiB")
def test_an_elementwise_task_of_six_gibibytes_keeps_the_budget(evaluator: LocalEvaluator) -> None:
    found, _ = judged(evaluator, rows=4096, columns=393216)
    assert found.outcome is Outcome.CORRECT, found.error
    assert found.peak_bytes["verifier"] + found.peak_bytes["sandbox"] < total_bytes()
    assert found.peak_bytes["sandbox"] < 5 * 6.5 * GIB
    assert any(check.startswith("inputs ") for check in found.checks)


@pytest.mark.skipif(not nvidia_devices() or total_bytes() < 76 * GIB, reason="the device has less than 76 GiB")
def test_a_candidate_with_intermediates_of_six_gibibytes_has_room(tmp_path: Path) -> None:
    task = TASK.format(rows=4096, columns=393216).replace("torch.relu(x)", "x / (1 + torch.abs(x))")
    local = LocalEvaluator(settings=LocalSettings(cache=tmp_path), guards=False)
    try:
        ((_, found),) = local.evaluate([job(task, f"{task}\nModelNew = Model\n")])
    finally:
        local.close()
    assert found.outcome is Outcome.CORRECT, found.error


def test_a_candidate_far_behind_is_right_and_roughly_measured(evaluator: LocalEvaluator) -> None:
    found, _ = judged(evaluator, rows=1 << 13, columns=1 << 13, delay=SPINNING)
    assert found.outcome is Outcome.CORRECT, found.error
    assert found.timing is not None
    assert DoubtKind.ROUGH in [doubt.kind for doubt in found.doubts], (found.timing.median_us, found.reference)
    assert found.timing.median_us > 3 * found.baselines[next(iter(found.baselines))].median_us
    assert found.gpu_s < 30


def test_one_that_never_ends_leaves_after_seconds(evaluator: LocalEvaluator) -> None:
    found, seconds = judged(evaluator, rows=1 << 10, columns=1 << 10, delay=ENDLESS)
    assert found.outcome is Outcome.TIMEOUT, found.error
    assert seconds < 30
