"""Reference and candidate compute under the same switches and in the same type, whatever class a job asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from artifacts.measurement import Measurement, Outcome, Precision
from optimizer.evaluation.build.builder import standard_builder
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.verify.task_module import load_task_module
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.processes import ForkServer
from optimizer.evaluation.worker.stages import Built, Stages

CPU = Device(backend="cpu", index=0, name="cpu", key="cpu-precision")
SWITCHED = """
import torch
from torch import nn


class {name}(nn.Module):
    def forward(self, x):
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        {before}
        seen = 1 + 2 * matmul.allow_tf32 + 4 * cudnn.allow_tf32
        seen += 8 * matmul.allow_fp16_reduced_precision_reduction + 16 * matmul.allow_bf16_reduced_precision_reduction
        return x * seen
"""
LINEAR = """
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, keep):
        return self.linear(x){after}
"""
INPUTS = "\n\ndef get_inputs():\n    return [torch.randn(40, 33)]\n"
LINEAR_INPUTS = """

def get_inputs():
    return [torch.randn(40, 33), torch.arange(4)]


def get_init_inputs():
    return [33]
"""


@pytest.fixture(scope="module")
def stages(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    folder = tmp_path_factory.mktemp("cache")
    builds = BuildServer(standard_builder(folder))
    stages = Stages(fork_server, builds, folder)
    yield stages
    stages.verifying.close()
    builds.close()


def judged(stages: Stages, task: str, candidate: str, settings: EvaluationSettings) -> Measurement:
    """The verifier's verdict, without the static guard: a candidate of torch alone ends at the run-time guard."""
    job = EvaluationJob(
        job_id="j",
        task_id="t",
        task_source=task,
        candidate_source=candidate,
        backend="cpu",
        seed=3,
        settings=settings,
    )
    return stages.measure(job, CPU, Built(findings=(), build_s=0.0, notes=()))


@pytest.mark.parametrize("precision", ["auto", "strict", "tf32"])
def test_candidate_and_reference_see_the_same_switches(stages: Stages, precision: str) -> None:
    task = SWITCHED.format(name="Model", before="") + INPUTS
    found = judged(stages, task, SWITCHED.format(name="ModelNew", before=""), EvaluationSettings(precision=precision))
    assert (found.stage, found.outcome) == ("runtime_guard", Outcome.REJECTED), found.error
    assert found.precision is (Precision.TF32 if precision == "tf32" else Precision.STRICT)


@pytest.mark.parametrize(("precision", "other"), [("strict", True), ("tf32", False)])
def test_a_candidate_that_leaves_its_class_is_refused(stages: Stages, precision: str, other: bool) -> None:
    task = SWITCHED.format(name="Model", before="") + INPUTS
    for owner in ("matmul", "cudnn"):
        candidate = SWITCHED.format(name="ModelNew", before=f"{owner}.allow_tf32 = {other}")
        found = judged(stages, task, candidate, EvaluationSettings(precision=precision))
        assert found.outcome is Outcome.REJECTED
        assert "changes global state" in found.error


def test_a_task_does_not_choose_the_switches(stages: Stages) -> None:
    task = "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n" + SWITCHED.format(name="Model", before="")
    found = judged(stages, task + INPUTS, SWITCHED.format(name="ModelNew", before=""), EvaluationSettings())
    assert found.stage == "runtime_guard", found.error


def test_a_cast_task_is_judged_in_its_type(stages: Stages) -> None:
    settings = EvaluationSettings(dtype="bfloat16")
    task = LINEAR.format(name="Model", after="") + LINEAR_INPUTS
    found = judged(stages, task, LINEAR.format(name="ModelNew", after=""), settings)
    assert (found.stage, found.precision) == ("runtime_guard", Precision.BFLOAT16), found.error
    wrong = judged(stages, task, LINEAR.format(name="ModelNew", after=".float()"), settings)
    assert wrong.outcome is Outcome.WRONG_RESULT
    assert "float32" in wrong.error


def test_a_task_in_a_half_type_of_its_own_has_its_class(stages: Stages) -> None:
    task = SWITCHED.format(name="Model", before="") + INPUTS.replace("33)", "33).half()")
    found = judged(stages, task, SWITCHED.format(name="ModelNew", before=""), EvaluationSettings())
    assert (found.stage, found.precision) == ("runtime_guard", Precision.FLOAT16), found.error


def test_floating_point_inputs_and_parameters_are_cast_and_nothing_else(tmp_path: Path) -> None:
    source = LINEAR.format(name="Model", after="") + LINEAR_INPUTS
    plain, cast = load_task_module(source, tmp_path), load_task_module(source, tmp_path, "float16")
    torch.manual_seed(1)
    exact, _ = plain.inputs()
    torch.manual_seed(1)
    rounded, whole = cast.inputs()
    assert torch.equal(rounded, exact.half())
    assert whole.dtype == torch.int64
    assert {value.dtype for value in cast.model(*cast.init_inputs()).parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"precision": "loose"}, "unknown precision 'loose', one of auto, strict, tf32"),
        ({"dtype": "int8"}, "unknown dtype 'int8', one of float32, bfloat16, float16"),
        ({"dtype": "bfloat16", "precision": "tf32"}, "tf32 is for float32, not for dtype bfloat16"),
        ({"baselines": ("fast",)}, "unknown baseline 'fast'"),
    ],
)
def test_settings_that_mean_nothing_cannot_be_made(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EvaluationSettings(**wrong)  # type: ignore[arg-type]
