"""The local evaluator end to end on the CPU: one measurement a job, typed, whatever happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from artifacts.errors import UnavailableError
from artifacts.measurement import DoubtKind, Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(40, 33)]
"""

CANDIDATE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(name="local_relu", cpp_sources=r'''
#include <torch/types.h>
#include <algorithm>
torch::Tensor own(torch::Tensor x) {
  auto y = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = std::max(x.data_ptr<float>()[i], 0.0f);
  return y;
}
''', functions=["own"], extra_cflags=["-O2", "-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""
# Without the implicit headers, which take the compiler that decides half a minute.
BROKEN = """
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(name="broken", cpp_sources='''
#include <algorithm>
float own(float x) {
  return std::nonsense(x, 0.0f);
}
''', functions=None, no_implicit_headers=True, extra_cflags=["-O2", "-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""

TREMBLING = """
import torch
from torch import nn

calls = [0]


class Model(nn.Module):
    def forward(self, x):
        if x.abs().max() < 20:
            return torch.relu(x)
        calls[0] += 1
        return torch.relu(x) * (1.0 if calls[0] % 4 in (1, 2) else 1.1)  # its fp64 run says the same


def get_inputs():
    return [torch.randn(40, 33)]
"""

pytestmark = [pytest.mark.xdist_group("evaluator"), pytest.mark.timeout(1800)]
SETTINGS = EvaluationSettings(seeds=2, min_samples=5, max_samples=20, budget_s=0.05, run_timeout_s=60)


def job(name: str, candidate: str, **changes: object) -> EvaluationJob:
    plain = EvaluationJob(
        job_id=name,
        task_id="relu",
        task_source=TASK,
        candidate_source=candidate,
        backend="cpu",
        seed=7,
        settings=SETTINGS,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def results(measured: Callable[[Sequence[EvaluationJob]], dict[str, Measurement]]) -> dict[str, Measurement]:
    jobs = [
        job("right", CANDIDATE),
        job("again", CANDIDATE, incumbent_source=CANDIDATE),
        job("no model", CANDIDATE.replace("ModelNew", "Other")),
        job("no python", "def ("),
        job("raises", CANDIDATE.replace("return ext.own(x)", "raise ValueError('my reason')")),
        job("does not build", BROKEN),
        job(
            "constant task",
            CANDIDATE.replace("ext.own(x)", "ext.own(x) * 0"),
            task_source=TASK.replace("torch.relu(x)", "torch.relu(x) * 0"),
        ),
        job("trembling task", CANDIDATE, task_source=TREMBLING),
        job("broken task", CANDIDATE, task_source=TASK.replace("torch.relu(x)", "x.missing")),
    ]
    return measured(jobs)


def test_a_right_kernel_is_timed_beside_eager(results: dict[str, Measurement]) -> None:
    measurement = results["right"]
    assert measurement.outcome is Outcome.CORRECT, measurement.error
    assert measurement.speedup("eager_fp32") is not None
    assert measurement.profile is not None
    assert {"perturbed parameters", "inputs ×-1", "own kernels matter"} <= set(measurement.checks)


def test_being_right_on_a_task_that_decides_nothing_is_doubted(results: dict[str, Measurement]) -> None:
    measurement = results["constant task"]
    assert measurement.outcome is Outcome.CORRECT, measurement.error
    assert measurement.doubts[0].kind is DoubtKind.UNDECIDED
    assert measurement.doubts[0].text == "the task decides nothing: mean and zeros would pass as output"


def test_inputs_on_which_the_reference_fails_too_when_called_again_are_left_out(
    results: dict[str, Measurement],
) -> None:
    measurement = results["trembling task"]
    assert measurement.outcome is Outcome.CORRECT, measurement.error
    assert {"inputs ×3", "inputs ×30"} <= set(measurement.checks)
    assert any(note.startswith("not tried: inputs +1000 ") for note in measurement.notes)


def test_an_incumbent_is_measured_in_turns(results: dict[str, Measurement]) -> None:
    measurement = results["again"]
    assert measurement.outcome is Outcome.CORRECT, measurement.error
    assert measurement.incumbent is not None
    assert measurement.faster_than_incumbent is not None


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("no model", Outcome.COMPILE_ERROR, "ModelNew"),
        ("no python", Outcome.COMPILE_ERROR, "SyntaxError"),
        ("raises", Outcome.RUNTIME_ERROR, "my reason"),
        ("does not build", Outcome.COMPILE_ERROR, "nonsense"),
        ("broken task", Outcome.INFRA_ERROR, "missing"),
    ],
)
def test_each_failure_has_its_type_and_its_reason(
    results: dict[str, Measurement], name: str, outcome: Outcome, words: str
) -> None:
    measurement = results[name]
    assert (measurement.outcome, words in measurement.error) == (outcome, True), measurement.error


def test_the_error_shows_the_candidates_line_and_no_path_of_the_host(results: dict[str, Measurement]) -> None:
    assert "line" in results["raises"].error
    assert "/tmp" not in results["raises"].error


def test_a_build_s_error_begins_with_the_compiler_s_first_at_the_candidate_s_line(
    results: dict[str, Measurement],
) -> None:
    wanted = next(number for number, line in enumerate(BROKEN.strip().splitlines(), start=1) if "nonsense" in line)
    first = results["does not build"].error.splitlines()[0]
    assert first.startswith(f"line {wanted}: error: ")
    assert "nonsense" in first
    assert results["does not build"].first_error == first


def test_a_closed_evaluator_says_so(tmp_path: Path) -> None:
    evaluator = LocalEvaluator(1, LocalSettings(cache=tmp_path))
    evaluator.close()
    with pytest.raises(UnavailableError, match="closed"):
        list(evaluator.evaluate([]))
