"""Large tensors: compared in parts, and answers that would fill a device are asked for again."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.sandbox import torch_state
from optimizer.evaluation.sandbox.session import facts_of
from optimizer.evaluation.sandbox.values import map_tensors
from optimizer.evaluation.verify import correctness, tolerance
from optimizer.evaluation.verify.correctness import PlainTrial
from optimizer.evaluation.verify.reference import Reference
from optimizer.evaluation.verify.task_module import load_task_module
from optimizer.evaluation.verify.tolerance import bounds_of, mismatch, powerless_controls, shares_of, tolerance_for
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


def test_an_answer_that_is_not_kept_is_asked_for_natively_and_still_tells_right_from_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = Reference(load_task_module(TASK, tmp_path), "cpu")
    case = reference.case(Trial(name="t", seed=3))
    first = reference.answer(case)
    assert not correctness._is_large(first)
    monkeypatch.setattr(torch_state, "_HOST_BYTES", 3200)
    assert correctness._is_large(first)
    reference.learn(shares_of(first))
    again = reference.native_answer(case)
    (native,), (bounds,), (exact_bounds,) = again.exact_tensors, bounds_of(again) or [], bounds_of(first) or []
    assert torch.equal(native, first.native_tensors[0])
    assert bounds is not None
    assert exact_bounds is not None
    assert bounds.rms == pytest.approx(exact_bounds.rms, rel=1e-3)
    assert bounds.absolute == pytest.approx(exact_bounds.absolute, rel=1e-3)
    assert mismatch(first.exact_tensors[0].float(), native, bounds) == ""
    assert mismatch(native.bfloat16().float(), native, bounds) != ""
    trial = PlainTrial(case=case, bounds=[], held=None, ask=lambda: reference.native_answer(case))
    assert trial.answer is not trial.answer


def test_nothing_waits_for_a_search_for_cycles() -> None:
    gc.disable()
    try:
        tensor, output = torch.zeros(3), torch.zeros(3)
        gone = [weakref.ref(tensor), weakref.ref(output)]
        map_tensors({"a": [tensor]}, lambda each: each + 1)
        facts_of((output, {"b": output}), [tensor])
        del tensor, output
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_a_task_whose_code_wants_a_host_generator_draws_on_the_host(tmp_path: Path) -> None:
    task = TASK.replace("torch.randn(50, 7)", "torch.randn(50, 7, generator=torch.Generator('cpu').manual_seed(1))")
    reference = Reference(load_task_module(task, tmp_path), "cpu")
    reference._draws_on = "meta"  # a device that such a generator does not fit
    assert reference.inputs(5)[0].shape == (50, 7)
    assert reference._draws_on == "cpu"
