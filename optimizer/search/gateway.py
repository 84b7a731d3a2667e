"""Where the search meets what costs money and time: every answer and measurement is logged before it is used."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from artifacts.codec import decode, encode
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget, Spent
from optimizer.llm.protocol import LlmAnswer, LlmClient, LlmRequest
from optimizer.search.journal import Journal
from optimizer.search.suspension import Suspended

INFRASTRUCTURE_RETRIES = 2


class Measurer(Protocol):
    """Measures one job; implementations: :class:`optimizer.search.bench.Bench`, fakes in tests."""

    async def measure(self, job: EvaluationJob) -> Measurement:
        """Return the measurement of ``job``."""
        ...


class Gateway:
    """Answers and measurements of one run, from its journal or from outside.

    What nobody here can give (``llm`` or ``bench`` None: files) is kept in ``open_requests`` or
    ``open_jobs`` by effect key, and the search that wanted it is suspended.

    Args:
        at_once: questions under way at most; those that wait for their turn are not asked any more once the run is
            ``stopping``. None for no limit, as for clients that collect questions.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        llm: LlmClient | None,
        bench: Measurer | None,
        budget: Budget | None = None,
        at_once: int | None = None,
    ) -> None:
        self._journal = journal
        self._llm = llm
        self._bench = bench
        self._budget = budget
        self.open_requests: dict[str, LlmRequest] = {}
        self.open_jobs: dict[str, EvaluationJob] = {}
        self._turns = contextlib.nullcontext() if at_once is None else asyncio.Semaphore(at_once)
        self.stopping = False

    async def ask(self, key: str, request: LlmRequest) -> LlmAnswer:
        """Return the answer to ``request``, asked for at most once in the life of the run.

        Raises:
            Suspended: it is to be answered through a file, or the run is stopping.
            BudgetExceededError, UnavailableError: from the client.
        """
        logged = decode(LlmRequest, self._journal.put("request", key, encode(request)))
        known = self._journal.get("answer", key)
        if known is None:
            known = self._journal.put("answer", key, encode(await self._answered(key, logged)))
        return decode(LlmAnswer, known)

    async def evaluate(self, key: str, job: EvaluationJob) -> Measurement:
        """Return the measurement of ``job``, taken at most once in the life of the run.

        Raises:
            Suspended: it is to be measured elsewhere, or the run is stopping.
            BudgetExceededError: no device time is left.
            UnavailableError: the evaluator cannot work.
        """
        known = self._journal.get("measurement", key)
        if known is None:
            measured = await self._measured(key, job)
            known = self._journal.put("measurement", key, encode(measured))
        return decode(Measurement, known)

    async def _answered(self, key: str, request: LlmRequest) -> LlmAnswer:
        if self._llm is None:
            self.open_requests[key] = request
            raise Suspended(f"{request.where} waits for an answer")
        async with self._turns:
            self._proceed()
            return await self._llm.complete(request)

    async def _measured(self, key: str, job: EvaluationJob) -> Measurement:
        if self._bench is None:
            self.open_jobs[key] = job
            raise Suspended(f"{key} waits for a measurement")
        measured: Measurement | None = None
        for attempt in range(1 + INFRASTRUCTURE_RETRIES):
            await asyncio.sleep(attempt)
            self._proceed()
            measured = await self._bench.measure(job)
            if self._budget is not None:
                self._budget.add(Spent(gpu_s=measured.gpu_s))
            if measured.outcome is not Outcome.INFRA_ERROR:
                break
        assert measured is not None
        return measured

    def _proceed(self) -> None:
        if self.stopping:
            raise Suspended("stopped by the user")
        if self._budget is not None:
            self._budget.check()
