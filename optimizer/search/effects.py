"""Effects of a run: what costs money or time is logged before it is used, and what is logged is never done again.

A search is run again from its start whenever the program starts. Every step asks the log first, so a run that was
killed continues where it was, and answers and measurements may travel as files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from artifacts.codec import decode, encode
from artifacts.errors import HtamError
from artifacts.measurement import Measurement, Outcome
from artifacts.runlog import Event, RunLog
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget, Spent
from optimizer.llm.protocol import LlmAnswer, LlmClient, LlmRequest

INFRASTRUCTURE_RETRIES = 2

Listener = Callable[[Event], None]
T = TypeVar("T")


class Suspended(Exception):  # noqa: N818 - it is no error
    """The search waits for a file, or was asked to stop; running it again continues it."""


class EffectLog:
    """Events of one run by kind and key.

    Args:
        log: where events are kept.
        listener: called with every event that is new, after it is on disk.

    Attributes:
        taken: task id → steps before their number was changed last; they are taken first again, whoever else gained.
    """

    def __init__(self, log: RunLog, listener: Listener | None = None) -> None:
        self.log = log
        self._listener = listener
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.taken: dict[str, int] = {}
        steps: dict[str, int] = {}
        for event in log.events():
            self._known[event.kind, event.key] = event.payload
            if event.kind == "step":
                steps[event.key.rpartition("/")[0]] = event.payload["index"] + 1
            elif event.kind == "steps_changed":  # tasks that had finished go on
                self.taken = dict(steps)
                self._known = {known: told for known, told in self._known.items() if known[0] != "task_finished"}

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Payload of an event, None when it has not happened."""
        return self._known.get((kind, key))

    def put(self, kind: str, key: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Log an event unless it is there, and return the payload that counts: the first."""
        known = self._known.get((kind, key))
        if known is not None:
            return known
        event = self.log.append(kind, payload, key=key)
        self._known[kind, key] = payload
        if self._listener is not None:
            self._listener(event)
        return payload

    def add_candidate(self, source: str) -> str:
        """Store a source under its identity and return that identity."""
        return self.log.add_candidate(source)

    def of_kind(self, kind: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """(key, payload) of all events of a kind, oldest first."""
        return tuple((key, payload) for (known, key), payload in self._known.items() if known == kind)


class Measurer(Protocol):
    """Measures one job; implementations: :class:`optimizer.search.measure.EvaluationQueue`, fakes in tests."""

    async def measure(self, job: EvaluationJob) -> Measurement:
        """Return the measurement of ``job``."""
        ...


class Effects:
    """Answers and measurements of one run, from its log or from outside.

    What cannot be had here (``llm`` or ``evaluations`` None: files) is kept in ``open_requests`` or ``open_jobs`` by
    effect key, and the search that wanted it is suspended.

    Args:
        at_once: questions under way at most; those that wait for their turn are not asked any more once the run is
            ``stopping``.
    """

    def __init__(
        self,
        log: EffectLog,
        *,
        llm: LlmClient | None,
        evaluations: Measurer | None,
        budget: Budget | None = None,
        at_once: int = 16,
    ) -> None:
        self.log = log
        self._llm = llm
        self._evaluations = evaluations
        self._budget = budget
        self.open_requests: dict[str, LlmRequest] = {}
        self.open_jobs: dict[str, EvaluationJob] = {}
        self._turns = asyncio.Semaphore(at_once)
        self.stopping = False

    async def ask(self, key: str, request: LlmRequest) -> LlmAnswer:
        """Return the answer to ``request``, asked for at most once in the life of the run.

        Raises:
            Suspended: it is to be answered through a file, or the run is stopping.
            BudgetExceededError, UnavailableError: from the client.
        """
        logged = decode(LlmRequest, self.log.put("request", key, encode(request)))
        known = self.log.get("answer", key)
        if known is None:
            known = self.log.put("answer", key, encode(await self._answered(key, logged)))
        return decode(LlmAnswer, known)

    async def evaluate(self, key: str, job: EvaluationJob) -> Measurement:
        """Return the measurement of ``job``, taken at most once in the life of the run.

        Raises:
            Suspended: it is to be measured elsewhere, or the run is stopping.
            BudgetExceededError: no device time is left.
            UnavailableError: the evaluator cannot work.
        """
        known = self.log.get("measurement", key)
        if known is None:
            measured = await self._measured(key, job)
            if job.reference_only and measured.outcome is Outcome.INFRA_ERROR:
                return measured  # nothing is known of the task; the next session tries again
            known = self.log.put("measurement", key, encode(measured))
        return decode(Measurement, known)

    async def _answered(self, key: str, request: LlmRequest) -> LlmAnswer:
        if self._llm is None:
            self.open_requests[key] = request
            raise Suspended(f"{request.where} waits for an answer")
        async with self._turns:
            self._proceed()
            return await self._llm.complete(request)

    async def _measured(self, key: str, job: EvaluationJob) -> Measurement:
        if self._evaluations is None:
            self.open_jobs[key] = job
            raise Suspended(f"{key} waits for a measurement")
        for attempt in range(1 + INFRASTRUCTURE_RETRIES):
            await asyncio.sleep(attempt)
            self._proceed()
            measured = await self._evaluations.measure(job)
            if self._budget is not None:
                self._budget.add(Spent(gpu_s=measured.gpu_s))
            if measured.outcome is not Outcome.INFRA_ERROR:
                break
        return measured

    def _proceed(self) -> None:
        if self.stopping:
            raise Suspended("stopped by the user")
        if self._budget is not None:
            self._budget.check()


async def all_of(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run parts side by side and return their results in order.

    When some cannot go on, the others are still finished (what they pay for is logged), then the worst
    reason is raised: a bug before a user's problem before a suspension.
    """
    results = await asyncio.gather(*parts, return_exceptions=True)
    problems = [result for result in results if isinstance(result, BaseException)]
    if problems:
        raise min(problems, key=_rank)
    return [result for result in results if not isinstance(result, BaseException)]


def _rank(problem: BaseException) -> int:
    if isinstance(problem, Suspended):
        return 2
    return 1 if isinstance(problem, HtamError) else 0
