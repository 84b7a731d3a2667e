"""A task with several input settings: right under all, timed under each, some kept from the prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from artifacts.errors import BadTaskError
from artifacts.measurement import Doubt, DoubtKind, Measurement, Outcome, Timing
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.verify.input_sets import MOST, InputSet, combined, input_sets

TASK = """
import functools
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs(rows=40):
    return [torch.randn(rows, 33)]


def get_init_inputs():
    return []


def get_input_sets():
    return [functools.partial(get_inputs, 64), [torch.randn(7, 5)]]


def get_hidden_input_sets():
    return [lambda: [torch.randn(300, 33)]]
"""
CANDIDATE = """
import torch
from torch.utils.cpp_extension import load_inline

ext = load_inline(name="relu_of_sets", cpp_sources=r'''
#include <torch/types.h>
#include <algorithm>
torch::Tensor own(torch::Tensor x, int64_t count) {
  auto y = torch::empty_like(x);
  for (int64_t i = 0; i < count; ++i) y.data_ptr<float>()[i] = std::max(x.data_ptr<float>()[i], 0.0f);
  return y;
}
''', functions=["own"], extra_cflags=["-O2", "-fopenmp"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ext.own(x, COUNT)
"""
SETTINGS = EvaluationSettings(seeds=2, min_samples=5, max_samples=20, budget_s=0.05, run_timeout_s=60)


def job(name: str, count: str = "x.numel()", task: str = TASK) -> EvaluationJob:
    return EvaluationJob(
        job_id=name,
        task_id="relu",
        task_source=task,
        candidate_source=CANDIDATE.replace("COUNT", count),
        backend="cpu",
        seed=7,
        settings=SETTINGS,
    )


@pytest.fixture(scope="module")
def results(measured: Callable[[Sequence[EvaluationJob]], dict[str, Measurement]]) -> dict[str, Measurement]:
    plain = TASK.partition("def get_input_sets")[0]
    jobs = [
        job("right"),
        job("shown rows only", "min(x.numel(), 64 * 33)"),
        job("first rows only", "min(x.numel(), 40 * 33)"),
        job("one setting", task=plain),
        job("settings fail", task=TASK.replace("torch.randn(7, 5)", "torch.nothing")),
        dataclasses.replace(
            job("reference", task=TASK.replace("torch.relu(x)", "x @ torch.ones(33, 2)")),
            candidate_source="",
            reference_only=True,
        ),
    ]
    return measured(jobs)


@pytest.mark.xdist_group("evaluator")
@pytest.mark.timeout(1800)
class TestOnThisMachine:
    def test_a_candidate_that_serves_all_settings_is_timed_under_each(self, results: dict[str, Measurement]) -> None:
        found = results["right"]
        assert found.timing is not None, found
        assert [one.name for one in found.input_sets] == ["get_inputs", "input set 1", "input set 2", "hidden set 1"]
        product = 1.0
        for one in found.input_sets:
            product *= one.timing.median_us
        assert found.timing.median_us == pytest.approx(product**0.25)
        assert found.scope == "geometric mean over 4 input settings, 1 of them hidden from the prompt"

    def test_a_candidate_that_fails_under_a_shown_setting_is_told_which(self, results: dict[str, Measurement]) -> None:
        found = results["first rows only"]
        assert (found.outcome, found.input_sets) == (Outcome.WRONG_RESULT, ())
        assert found.error.startswith("input set 1: ")

    def test_what_went_wrong_under_a_hidden_setting_is_a_note(self, results: dict[str, Measurement]) -> None:
        found = results["shown rows only"]
        assert found.outcome is Outcome.WRONG_RESULT
        assert "not shown" in found.error
        assert "elements differ" not in found.error
        assert any(note.startswith("hidden set 1: ") and "elements differ" in note for note in found.notes)

    def test_a_kernel_may_be_made_for_the_one_shape_of_a_task(self, results: dict[str, Measurement]) -> None:
        found = results["one setting"]
        assert (found.outcome, found.input_sets) == (Outcome.CORRECT, ())
        assert "specialised" in found.scope

    def test_settings_that_fail_are_the_fault_of_the_task(self, results: dict[str, Measurement]) -> None:
        found = results["settings fail"]
        assert (found.outcome, found.stage) == (Outcome.INFRA_ERROR, "task")
        assert found.error.startswith("get_input_sets() fails: AttributeError")

    def test_the_reference_has_to_run_under_every_setting(self, results: dict[str, Measurement]) -> None:
        found = results["reference"]
        assert (found.outcome, found.stage) == (Outcome.RUNTIME_ERROR, "task")
        assert found.error.startswith("input set 2: task fails: ")


def timing(median: float, spread: float = 0.01) -> Timing:
    return Timing(median_us=median, low_us=median * (1 - spread), high_us=median * (1 + spread))


def measured(median: float, incumbent: float, faster: bool) -> Measurement:
    return Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cpu",
        timing=timing(median),
        baselines={"eager_fp32": timing(100.0)},
        incumbent=timing(incumbent),
        faster_than_incumbent=faster,
    )


TWO = [InputSet(name="get_inputs", source=""), InputSet(name="input set 1", source="")]


@pytest.mark.parametrize(
    ("first", "second", "faster"),
    [
        ((50.0, 100.0, True), (100.0, 100.0, False), True),
        ((50.0, 100.0, True), (200.0, 100.0, False), False),  # what one setting gains the other loses
        ((99.0, 100.0, False), (99.0, 100.0, False), False),
    ],
)
def test_a_candidate_is_promoted_for_what_it_gains_over_all_settings(
    first: tuple[float, float, bool], second: tuple[float, float, bool], faster: bool
) -> None:
    assert combined(TWO, [measured(*first), measured(*second)]).faster_than_incumbent is faster


def test_speedups_are_geometric_means_of_those_under_each_setting() -> None:
    found = combined(TWO, [measured(50.0, 100.0, True), measured(200.0, 100.0, False)])
    assert found.speedup() == pytest.approx(1.0)
    assert found.timing is not None
    assert found.timing.high_us / found.timing.median_us < 1.01  # errors of two settings partly cancel


def test_a_doubt_about_one_setting_is_one_about_the_mean() -> None:
    rough = Doubt(kind=DoubtKind.ROUGH, text="timed 3 times only: 9 times as slow as the reference")
    slow = dataclasses.replace(measured(900.0, 100.0, False), doubts=(rough,))
    found = combined(TWO, [measured(50.0, 100.0, True), slow])
    assert found.doubts == (dataclasses.replace(rough, text=f"input set 1: {rough.text}"),)


def test_more_settings_than_a_job_can_hold_are_refused(tmp_path: Path) -> None:
    source = TASK.replace("[lambda: [torch.randn(300, 33)]]", f"[get_inputs] * {MOST}")
    with pytest.raises(BadTaskError, match=f"at most {MOST}"):
        input_sets(source, tmp_path)
