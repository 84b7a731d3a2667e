"""Compiler flags of a candidate's own, on every build route: ``pytest -m gpu tests/gpu/test_flags.py``."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.measurement import Outcome
from optimizer.evaluation.build.builder import StockRoute, default_root
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.fast import FastRoute
from optimizer.evaluation.build.request import BuildRequest, Route, SourceFile
from optimizer.evaluation.build.toolchain import detect_toolchain
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
DECLARATION = "torch::Tensor own(torch::Tensor x);\n"
KERNEL = """
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void rectify(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
torch::Tensor own(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "rows must follow one another");
  auto y = torch::empty_like(x);
  int n = x.numel();
  rectify<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}
"""
BINDING = (
    "#include <torch/extension.h>\n"
    + DECLARATION
    + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("own", &own); }\n'
)
FLAGS = {  # of the device's own architecture, such as 90
    "arch": ("-arch=sm_{arch}",),
    "arch in two words": ("-arch", "sm_{arch}"),
    "gencode": ("-gencode", "arch=compute_{arch},code=sm_{arch}"),
    "assembler": ("-Xptxas", "-v"),
    "assembler in one word": ("--ptxas-options=-v",),
    "lines": ("-lineinfo",),
    "language": ("-std=c++17",),
    "many": (
        "-O3 --use_fast_math",
        "-std=c++17",
        "-arch=sm_{arch}",
        "-lineinfo",
        "--expt-relaxed-constexpr",
        "-Xptxas",
        "-v",
    ),
}
TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(1000, 1003)]
"""
CANDIDATE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="flags", cpp_sources="torch::Tensor own(torch::Tensor x);", cuda_sources=r'''KERNEL''', functions=["own"],
    extra_cflags=["-O3", "-std=c++17"], extra_cuda_cflags=FLAGS,
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x.contiguous())
"""


def routes(root: Path) -> dict[str, Route]:
    toolchain = detect_toolchain()
    fast = {name: FastRoute(toolchain, BuildCache(root), split=name == "split") for name in ("split", "slim")}
    return {**fast, "stock": StockRoute(arch=toolchain.arch)}


def flags(name: str) -> tuple[str, ...]:
    return tuple(flag.replace("{arch}", detect_toolchain().arch) for flag in FLAGS[name])


def loaded(name: str, library: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("route", "name"), [*itertools.product(("split", "slim"), FLAGS), ("stock", "many"), ("stock", "arch in two words")]
)
def test_a_candidates_flags_build_on_every_route(tmp_path: Path, route: str, name: str) -> None:
    module = f"flags_{route}_{name.replace(' ', '_')}"
    request = BuildRequest(
        name=module,
        files=(SourceFile(name="main.cpp", text=BINDING), SourceFile(name="cuda.cu", text=KERNEL)),
        cuda_cflags=flags(name),
        with_cuda=True,
    )
    chosen = routes(default_root())[route]
    assert chosen.supports(request)
    attempt = chosen.build(request, tmp_path, 600.0)
    assert attempt.library is not None, attempt.log
    x = torch.randn(1000, 1003, device="cuda")
    assert torch.equal(loaded(module, attempt.library).own(x), torch.relu(x))


@pytest.mark.parametrize("name", ["arch", "gencode", "many"])
def test_a_candidate_with_flags_of_its_own_is_correct(tmp_path: Path, name: str) -> None:
    source = CANDIDATE.replace("KERNEL", KERNEL).replace("FLAGS", repr(list(flags(name))))
    job = EvaluationJob(
        job_id=name,
        task_id="relu",
        task_source=TASK,
        candidate_source=source,
        backend="cuda",
        seed=3,
        settings=EvaluationSettings(seeds=2, baselines=()),
    )
    evaluator = LocalEvaluator(settings=LocalSettings(cache=tmp_path))
    try:
        ((_, found),) = evaluator.evaluate([job])
    finally:
        evaluator.close()
    assert found.outcome is Outcome.CORRECT, found.error
    assert not any("fast route failed" in note for note in found.notes), found.notes
