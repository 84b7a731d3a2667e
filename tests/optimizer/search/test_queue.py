from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.search.measure import EvaluationQueue


def job(name: str) -> EvaluationJob:
    return EvaluationJob(job_id=name, task_id="t", task_source="", candidate_source=name, backend="cpu", seed=1)


def verdict(name: str) -> Measurement:
    return Measurement(outcome=Outcome.TIMEOUT, stage="build", device="cpu", error=name)


class Evaluator:
    """Notes its batches; waits for ``gate`` before the first result of each."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        batch = [item.job_id for item in jobs]
        self.batches.append(batch)
        assert self.gate.wait(250)
        for name in reversed(batch):
            yield name, verdict(name)

    def close(self) -> None:
        self.closed = True


def measured(queue: EvaluationQueue, names: list[str]) -> list[str]:
    async def run() -> list[str]:
        found = await asyncio.gather(*(queue.measure(job(name)) for name in names))
        await queue.close()
        return [item.error for item in found]

    return asyncio.run(run())


def test_every_job_gets_its_own_measurement_whatever_the_order() -> None:
    evaluator = Evaluator()
    assert measured(EvaluationQueue(evaluator), ["a", "b", "c"]) == ["a", "b", "c"]
    assert evaluator.closed


def test_jobs_of_one_step_travel_as_one_batch() -> None:
    evaluator = Evaluator()
    measured(EvaluationQueue(evaluator), ["a", "b", "c"])
    assert evaluator.batches == [["a", "b", "c"]]


def test_the_next_batch_is_begun_while_one_is_measured() -> None:
    evaluator = Evaluator()
    evaluator.gate.clear()

    async def run() -> None:
        queue = EvaluationQueue(evaluator, lanes=2)
        first = asyncio.create_task(queue.measure(job("a")))
        while not evaluator.batches:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(queue.measure(job("b")))
        while len(evaluator.batches) < 2:
            await asyncio.sleep(0.001)
        evaluator.gate.set()
        await asyncio.gather(first, second)
        await queue.close()

    asyncio.run(asyncio.wait_for(run(), 250))
    assert evaluator.batches == [["a"], ["b"]]


@pytest.mark.parametrize("problem", [UnavailableError("no device"), RuntimeError("a bug")])
def test_an_evaluator_that_cannot_work_tells_every_job(problem: Exception) -> None:
    class Broken(Evaluator):
        def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
            raise problem

    with pytest.raises(type(problem), match=str(problem)):
        measured(EvaluationQueue(Broken()), ["a", "b"])


def test_a_job_without_a_measurement_is_a_bug_that_is_heard() -> None:
    class Forgetful(Evaluator):
        def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
            return iter(())

    with pytest.raises(RuntimeError, match="no measurement"):
        measured(EvaluationQueue(Forgetful()), ["a"])


def test_a_stopped_run_finishes_what_is_under_way_and_goes_on_later(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=2)
    log = run.effect_log()
    session = run.session(log)
    complete = run.model.complete

    async def stopping(request: Any) -> Any:
        session.stop()
        return await complete(request)

    run.model.complete = stopping
    standing = asyncio.run(session.advance())
    assert set(standing.suspended.values()) == {"stopped by the user"}
    asked = len(run.model.asked)
    assert len(log.of_kind("answer")) == asked > 0
    log.log.close()
    run.model.complete = complete
    log = run.effect_log()
    assert asyncio.run(run.session(log).advance()).complete
    assert len(run.model.asked) == len(set(run.model.asked))
    log.log.close()
