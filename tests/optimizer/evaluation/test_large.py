"""Large tensors: compared in parts, and answers that would fill a device are asked for again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.sandbox import torch_state
from optimizer.evaluation.verify import correctness, tolerance
from optimizer.evaluation.verify.correctness import PlainTrial
from optimizer.evaluation.verify.reference import Reference
from optimizer.evaluation.verify.task_module import load_task_module
from optimizer.evaluation.verify.tolerance import mismatch, powerless_controls, tolerance_for
from optimizer.evaluation.verify.trials import Trial

TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x)


def get_inputs():
    return [torch.randn(50, 7)]
"""


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_CHUNK", 16)


def wrong_at(exact: Any, index: int) -> Any:
    output = exact.float().clone()
    output.view(-1)[index] += 1.0
    return output


@pytest.mark.usefixtures("parts")
def test_bounds_and_verdicts_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.randn(50, 7, dtype=torch.float64)
    in_parts = tolerance_for(exact, exact.float())
    assert in_parts is not None
    said = mismatch(wrong_at(exact, 200), exact, in_parts)
    monkeypatch.setattr(tolerance, "_CHUNK", 1 << 20)
    whole = tolerance_for(exact, exact.float())
    assert whole is not None
    assert in_parts.rms == pytest.approx(whole.rms)
    assert in_parts.absolute == pytest.approx(whole.absolute)
    assert said == mismatch(wrong_at(exact, 200), exact, whole)
    assert "first at flat index 200" in said


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("index", [0, 15, 16, 349])
def test_one_wrong_element_is_found_wherever_it_is(index: int) -> None:
    exact = torch.randn(50, 7, dtype=torch.float64)
    bounds = tolerance_for(exact, exact.float())
    assert bounds is not None
    assert f"1 of 350 elements differ, the first at flat index {index}" in mismatch(
        wrong_at(exact, index), exact, bounds
    )
    assert mismatch(exact.float(), exact, bounds) == ""


@pytest.mark.usefixtures("parts")
def test_trivial_outputs_are_refuted_in_parts_too() -> None:
    exact = torch.randn(50, 7, dtype=torch.float64)
    bounds = tolerance_for(exact, exact.float())
    assert bounds is not None
    assert powerless_controls(exact, bounds) == set()


def test_an_answer_that_is_not_kept_is_the_same_when_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Reference(load_task_module(TASK, tmp_path), "cpu")
    case = reference.case(Trial(name="t", seed=3))
    first = reference.answer(case)
    assert not correctness._is_large(first)
    monkeypatch.setattr(torch_state, "_HOST_BYTES", 3200)
    assert correctness._is_large(first)
    trial = PlainTrial(case=case, bounds=[], held=None, ask=lambda: reference.answer(case))
    assert torch.equal(trial.answer.exact_tensors[0], first.exact_tensors[0])
    assert trial.answer is not trial.answer


def test_a_task_whose_code_wants_a_host_generator_draws_on_the_host(tmp_path: Path) -> None:
    task = TASK.replace("torch.randn(50, 7)", "torch.randn(50, 7, generator=torch.Generator('cpu').manual_seed(1))")
    reference = Reference(load_task_module(task, tmp_path), "cpu")
    reference._draws_on = "meta"  # a device that such a generator does not fit
    assert reference.inputs(5)[0].shape == (50, 7)
    assert reference._draws_on == "cpu"
