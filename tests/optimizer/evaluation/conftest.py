"""What several modules start once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from artifacts.measurement import Measurement
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.local import LocalEvaluator
from optimizer.evaluation.worker.processes import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One that has imported torch, for all that fork from it."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def measured(evaluator: LocalEvaluator) -> Callable[[Sequence[EvaluationJob]], dict[str, Measurement]]:
    """Measurements by job. What the machine was too busy to time, which is no verdict, is asked for again."""

    def ask(jobs: Sequence[EvaluationJob]) -> dict[str, Measurement]:
        pairs = list(evaluator.evaluate(jobs))
        assert sorted(name for name, _ in pairs) == sorted(each.job_id for each in jobs)
        found = dict(pairs)
        for _ in range(4):
            found |= evaluator.evaluate(each for each in jobs if "too busy" in found[each.job_id].error)
        return found

    return ask
