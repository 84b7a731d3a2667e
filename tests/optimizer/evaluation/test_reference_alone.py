"""Before anything is paid for: does the reference of a task run, and can an answer be told from a wrong one?"""

from __future__ import annotations

import pytest

from artifacts.measurement import Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.local import LocalEvaluator

pytestmark = [pytest.mark.xdist_group("evaluator"), pytest.mark.timeout(600)]
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(40, 33)]

def get_init_inputs():
    return []
"""


def job(source: str) -> EvaluationJob:
    return EvaluationJob(
        job_id="t/reference",
        task_id="t",
        task_source=source,
        candidate_source="",
        reference_only=True,
        backend="cpu",
        seed=7,
        settings=EvaluationSettings(run_timeout_s=60),
    )


def test_a_reference_that_runs_is_timed(evaluator: LocalEvaluator) -> None:
    ((name, found),) = evaluator.evaluate([job(TASK.format(expression="torch.relu(x)"))])
    assert (name, found.outcome, found.stage) == ("t/reference", Outcome.CORRECT, "task")
    assert found.speedup() == 1.0


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("x @ x", "task fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("x / (x * 0)", "not finite"),
        ("torch.nn.functional.dropout(x, 0.5)", "is random"),
        ("torch.relu(x) * 0", "decides nothing: mean and zeros would pass as output"),
    ],
)
def test_a_reference_that_no_candidate_can_be_held_against_says_why(
    expression: str, said: str, evaluator: LocalEvaluator
) -> None:
    ((_, found),) = evaluator.evaluate([job(TASK.format(expression=expression))])
    assert (found.outcome, found.stage) == (Outcome.RUNTIME_ERROR, "task")
    assert said in found.error
    assert "\n" not in found.error


def test_a_job_of_the_reference_alone_has_no_candidate() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        EvaluationJob(
            job_id="x",
            task_id="x",
            task_source="",
            candidate_source="class ModelNew: ...",
            reference_only=True,
            backend="cpu",
            seed=1,
        )
