"""Measure: evaluation jobs of a task, and the queue through which they reach an evaluator."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob, Evaluator
from optimizer.search.task_search import Attempt, Confirmation, TaskSearch

CONFIRMATIONS = 3
"""Candidates of a task that are measured again at most, each after the one before it failed."""

_Waiting = tuple[EvaluationJob, "asyncio.Future[Measurement]"]


async def measure(search: TaskSearch, attempt: Attempt) -> Attempt:
    """Time a candidate side by side with its incumbent; one without a source is left as it is."""
    if not attempt.source:
        return attempt
    proposal = attempt.proposal
    measurement = await measured(search, proposal.slot, attempt.source, proposal.incumbent_id)
    return replace(attempt, measurement=measurement)


async def check_reference(search: TaskSearch) -> None:
    """Run the reference alone before a model is asked; ``unusable`` says why no candidate could be judged."""
    log = search.log
    unchecked = log.get("measurement", search.key("reference")) is None
    if unchecked and log.get("choice", search.key("0.0")) is not None:
        return  # the run began without looking at references
    search.unusable = (await measured(search, "reference")).error


async def measured(search: TaskSearch, place: str, source: str = "", incumbent_id: str | None = None) -> Measurement:
    """Measurement of ``source``, of the reference without one, taken once in the life of the run at that place."""
    key, incumbent, run = search.key(place), search.node(incumbent_id), search.run
    job = EvaluationJob(
        job_id=key,
        task_id=search.task_id,
        task_source=search.task.source,
        candidate_source=source,
        reference_only=not source,
        incumbent_source="" if incumbent is None else incumbent.source,
        backend=run.backend,
        seed=int.from_bytes(hashlib.sha256(f"{run.seed}/{key}/hidden".encode()).digest()[:6], "big"),
        settings=run.evaluation,
    )
    return await search.effects.evaluate(key, job)


async def confirm(search: TaskSearch) -> None:
    """Measure the winner again, in a job of its own, because the fastest of many noisy figures flatters itself.

    One that fails then can win no more, and the next best takes its place.
    """
    refuted: dict[str, str] = {}
    again: Measurement | None = None
    for _ in range(CONFIRMATIONS):
        best = search.population.best
        if best is None:
            break
        again = await measured(search, f"{best.step_id}/confirm", best.source)
        if not again.outcome.charged_to_candidate or again.outcome is Outcome.CORRECT:
            break
        refuted[best.step_id] = f"{again.outcome.value} when measured again: {again.error}"
        search.population.refute(best)
    sure = again if again is not None and again.outcome is Outcome.CORRECT else None
    search.confirmation = Confirmation(measurement=sure, refuted=refuted)


class EvaluationQueue:
    """Feeds an :class:`Evaluator` from one event loop.

    All jobs that wait make one batch, so that an evaluator can spread it over its devices. Up to ``lanes``
    batches are under way: while one is measured, the next is built.
    """

    def __init__(self, evaluator: Evaluator, lanes: int = 3) -> None:
        self._evaluator = evaluator
        self._lanes = lanes
        self._waiting: deque[_Waiting] = deque()
        self._threads = ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="evaluator")
        self._feeders: set[asyncio.Task[None]] = set()

    async def measure(self, job: EvaluationJob) -> Measurement:
        """Return the measurement of one job; many may be awaited at once."""
        future: asyncio.Future[Measurement] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if len(self._feeders) < self._lanes:
            feeder = asyncio.create_task(self._feed())
            self._feeders.add(feeder)
            feeder.add_done_callback(self._feeders.discard)
        return await future

    async def close(self) -> None:
        """Wait for the batches under way and end the evaluator."""
        if self._feeders:
            await asyncio.wait(self._feeders)
        await asyncio.to_thread(self._evaluator.close)
        self._threads.shutdown()

    async def _feed(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # lets all candidates of a step queue up for one batch
        while self._waiting:
            batch = {job.job_id: (job, future) for job, future in self._waiting}
            self._waiting.clear()
            try:
                await loop.run_in_executor(self._threads, self._run, loop, batch)
            except Exception as problem:  # noqa: BLE001 - handed to every job that waits for this batch
                _fail(batch, problem)

    def _run(self, loop: asyncio.AbstractEventLoop, batch: dict[str, _Waiting]) -> None:
        for job_id, measurement in self._evaluator.evaluate([job for job, _ in batch.values()]):
            loop.call_soon_threadsafe(_deliver, batch[job_id][1], measurement)
        loop.call_soon_threadsafe(_fail, batch, RuntimeError("the evaluator gave no measurement"))


def _deliver(future: asyncio.Future[Measurement], measurement: Measurement) -> None:
    if not future.done():
        future.set_result(measurement)


def _fail(batch: dict[str, _Waiting], problem: Exception) -> None:
    for job, future in batch.values():
        if not future.done():
            problem.add_note(f"job {job.job_id}")
            future.set_exception(problem)
