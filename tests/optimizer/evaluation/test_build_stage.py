"""The build stage of a CUDA candidate sees no device, and decides only what a device would not change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.build.builder import BuildResult
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import ForkServer
from optimizer.evaluation.worker.stages import Built, Stages

DEVICE = Device(backend="cuda", index=0, name="a device", key="GPU-0")
CANDIDATE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
{before}
ext = load_inline(name="m", cpp_sources="torch::Tensor own(torch::Tensor x) {{ return x; }}", functions=["own"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def copied(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        copied[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
"""


class NoCompiler:
    """Refuses everything, and counts."""

    def __init__(self) -> None:
        self.requests = 0

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        self.requests += 1
        return BuildResult(library="", route="stock", log="error: own is wrong")


@pytest.fixture
def compiler() -> NoCompiler:
    return NoCompiler()


@pytest.fixture
def stages(fork_server: ForkServer, compiler: NoCompiler, tmp_path: Path) -> Iterator[Stages]:
    builds = BuildServer(compiler)
    yield Stages(fork_server, builds, tmp_path)
    builds.close()


def built(stages: Stages, source: str, incumbent: str = "") -> Measurement | Built:
    job = EvaluationJob(
        job_id="j",
        task_id="t",
        task_source="",
        candidate_source=source,
        backend="cuda",
        seed=1,
        incumbent_source=incumbent,
    )
    return stages.build(job, DEVICE)


def test_what_does_not_compile_is_decided_without_a_device(stages: Stages) -> None:
    result = built(stages, CANDIDATE.format(before=""))
    assert isinstance(result, Measurement)
    assert (result.outcome, result.stage) == (Outcome.COMPILE_ERROR, "build")
    assert "own is wrong" in result.error


def test_what_is_no_python_is_decided_without_a_device(stages: Stages) -> None:
    result = built(stages, CANDIDATE.format(before="def ("))
    assert isinstance(result, Measurement)
    assert result.outcome is Outcome.COMPILE_ERROR


def test_who_asks_for_the_device_while_it_is_hidden_is_judged_where_it_is_not(stages: Stages) -> None:
    result = built(stages, CANDIDATE.format(before="torch.empty(1, device='cuda')"))
    assert isinstance(result, Built)


def test_a_candidate_without_an_extension_needs_no_build_process(stages: Stages, compiler: NoCompiler) -> None:
    result = built(stages, TRITON)
    assert isinstance(result, Built)
    assert not result.notes
    assert compiler.requests == 0


def test_an_incumbent_is_built_before_the_device_is_asked_for(stages: Stages, compiler: NoCompiler) -> None:
    result = built(stages, TRITON, incumbent=CANDIDATE.format(before=""))
    assert isinstance(result, Built), "what is wrong with an incumbent says nothing of the candidate"
    assert compiler.requests == 1
