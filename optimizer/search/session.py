"""One sitting of a run: from its settings and log to searches that go on as far as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.arms import Arm
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget
from optimizer.llm.protocol import LlmClient, LlmRequest
from optimizer.search.board import Board
from optimizer.search.briefing import Briefing
from optimizer.search.gateway import Gateway, Measurer
from optimizer.search.journal import Journal
from optimizer.search.plan import RunSettings
from optimizer.search.suite import Suite, SuiteResult
from optimizer.search.task_search import TaskSearch
from optimizer.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands after a sitting.

    Attributes:
        open_requests: effect key → request that waits for an answer from a file.
        open_jobs: effect key → job that waits for a measurement from a file.
    """

    result: SuiteResult
    open_requests: dict[str, LlmRequest]
    open_jobs: dict[str, EvaluationJob]

    @property
    def complete(self) -> bool:
        """Whether every task is finished."""
        return not self.result.suspended


class Session:
    """Advances a run; make a new one for each sitting.

    Args:
        llm, bench: None when answers or measurements come through files.
        at_once: questions under way at most, see :class:`optimizer.search.gateway.Gateway`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        arm: Arm,
        run: RunSettings,
        journal: Journal,
        *,
        llm: LlmClient | None = None,
        bench: Measurer | None = None,
        budget: Budget | None = None,
        at_once: int | None = None,
    ) -> None:
        self._run = run
        self._gateway = Gateway(journal, llm=llm, bench=bench, budget=budget, at_once=at_once)
        self._board = Board(shared=run.search.shared)
        overlay = self._board.seen_before if run.search.shared else None
        briefing = Briefing(arm, run.target)
        self.searches = [TaskSearch(task, arm, run, journal, self._gateway, briefing, overlay) for task in tasks]
        for search in self.searches:
            self._board.join(search)

    def stop(self) -> None:
        """Start nothing new; what is under way is finished and logged."""
        self._gateway.stopping = True

    async def advance(self) -> Standing:
        """Go on until every task is finished or waits."""
        suite = Suite(self.searches, self._run.search, self._board)
        result = await suite.run()
        return Standing(result=result, open_requests=self._gateway.open_requests, open_jobs=self._gateway.open_jobs)
