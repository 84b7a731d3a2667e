"""Precision classes and baselines on a CUDA device: ``pytest -m gpu tests/gpu``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.measurement import BASELINES, Measurement, Outcome, Precision
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900), pytest.mark.xdist_group("gpu")]

CONV = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        return torch.nn.functional.hardswish(y * self.scale) + x


def get_inputs():
    return [torch.randn(32, 64, 128, 128)]


def get_init_inputs():
    return [64]
"""
KEEPS_THE_CONVOLUTION = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def fused(y, scale, x, out, n, channels, area, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(y + at, mask=inside) * tl.load(scale + (at // area) % channels, mask=inside)
    gate = tl.minimum(tl.maximum(a + 3.0, 0.0), 6.0) / 6.0
    tl.store(out + at, a * gate + tl.load(x + at, mask=inside), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        x = x.contiguous()
        y = self.conv(x).contiguous()
        out = torch.empty_like(x)
        n = x.numel()
        fused[(triton.cdiv(n, 1024),)](y, self.scale, x, out, n, x.shape[1], x.shape[2] * x.shape[3], BLOCK=1024)
        return out
"""
PRODUCT = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(512, 512), torch.randn(512, 512)]
"""
OWN_PRODUCT = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def product(a, b, c, N: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, N, STEP):
        left = tl.load(a + rows[:, None] * N + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + columns[None, :])
        total += tl.dot(left, right, input_precision="PRECISION")
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        c = torch.empty_like(a)
        product[(8, 8)](a, b, c, N=512, BLOCK=64, STEP=32)
        return c
"""
SETTINGS = EvaluationSettings(seeds=2, baselines=())


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    evaluator = LocalEvaluator(settings=LocalSettings(cache=tmp_path_factory.mktemp("cache")))
    yield evaluator
    evaluator.close()


def job(task: str, candidate: str, settings: EvaluationSettings, name: str = "j") -> EvaluationJob:
    return EvaluationJob(
        job_id=name,
        task_id=name,
        task_source=task,
        candidate_source=candidate,
        backend="cuda",
        seed=11,
        settings=settings,
    )


def judged(evaluator: LocalEvaluator, task: str, candidate: str, settings: EvaluationSettings) -> Measurement:
    ((_, measurement),) = evaluator.evaluate([job(task, candidate, settings)])
    return measurement


def test_a_convolution_of_torch_may_be_kept_in_every_class(evaluator: LocalEvaluator) -> None:
    wanted = {
        "strict": SETTINGS,
        "tf32": dataclasses.replace(SETTINGS, precision="tf32"),
        "float16": dataclasses.replace(SETTINGS, dtype="float16"),
        "bfloat16": dataclasses.replace(SETTINGS, dtype="bfloat16"),
    }
    for _ in range(2):  # verifiers and warm sandboxes have served another class meanwhile
        jobs = [job(CONV, KEEPS_THE_CONVOLUTION, settings, name) for name, settings in wanted.items()]
        found = dict(evaluator.evaluate(jobs))
        assert {name: each.error for name, each in found.items()} == dict.fromkeys(wanted, "")
        assert {name: each.precision.value for name, each in found.items()} == {name: name for name in wanted}


def test_tf32_is_judged_in_its_class_and_refused_in_strict(evaluator: LocalEvaluator) -> None:
    tf32 = OWN_PRODUCT.replace("PRECISION", "tf32")
    refused = judged(evaluator, PRODUCT, tf32, SETTINGS)
    assert refused.outcome is Outcome.WRONG_RESULT
    assert refused.precision is Precision.STRICT
    allowed = judged(evaluator, PRODUCT, tf32, dataclasses.replace(SETTINGS, precision="tf32"))
    assert allowed.outcome is Outcome.CORRECT, allowed.error
    exact = judged(evaluator, PRODUCT, OWN_PRODUCT.replace("PRECISION", "ieee"), SETTINGS)
    assert exact.outcome is Outcome.CORRECT, exact.error


def test_operands_of_bfloat16_are_refused_in_the_tf32_class(evaluator: LocalEvaluator) -> None:
    source = OWN_PRODUCT.replace("PRECISION", "ieee").replace("tl.dot(left", "tl.dot(left.to(tl.bfloat16)")
    source = source.replace(", right, input_precision", ", right.to(tl.bfloat16), input_precision")
    found = judged(evaluator, PRODUCT, source, dataclasses.replace(SETTINGS, precision="tf32"))
    assert found.outcome is Outcome.WRONG_RESULT, found.error


@pytest.mark.parametrize("precision", ["strict", "tf32"])
def test_every_baseline_is_timed_once_and_told_again_from_the_store(tmp_path: Path, precision: str) -> None:
    settings = dataclasses.replace(SETTINGS, precision=precision, baselines=BASELINES, run_timeout_s=300.0)
    found, kept = [], []
    for _ in range(2):  # another worker with the same cache
        evaluator = LocalEvaluator(settings=LocalSettings(cache=tmp_path))
        try:
            found.append(judged(evaluator, CONV, KEEPS_THE_CONVOLUTION, settings))
        finally:
            evaluator.close()
        assert found[-1].outcome is Outcome.CORRECT, found[-1].error
        assert set(found[-1].baselines) == set(BASELINES), (found[-1].notes, found[-1].doubts)
        kept.append({path.name: path.stat().st_mtime_ns for path in (tmp_path / "baselines").iterdir()})
    first, second = found
    assert len(kept[0]) == len(BASELINES) - 1
    assert kept[0] == kept[1], "a baseline was timed again"
    assert first.fastest_baseline in first.precision.baselines
    assert second.reference is not None
    assert second.reference.samples_us


def test_a_job_that_asks_for_nothing_has_a_headline_and_pytorch_as_installed_beside_it(tmp_path: Path) -> None:
    evaluator = LocalEvaluator(settings=LocalSettings(cache=tmp_path))
    try:
        settings = dataclasses.replace(SETTINGS, baselines=None, run_timeout_s=300.0)
        found = judged(evaluator, CONV, KEEPS_THE_CONVOLUTION, settings)
    finally:
        evaluator.close()
    assert found.outcome is Outcome.CORRECT, found.error
    assert set(found.baselines) == {"eager", "eager_fp32", "compile", "cuda_graph"}, (found.notes, found.doubts)
    assert found.fastest_baseline in {"eager_fp32", "compile", "cuda_graph"}
