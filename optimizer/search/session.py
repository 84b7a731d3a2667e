"""A session of a run: all its tasks side by side as far as they go, and steps that move to those that still improve."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from artifacts.errors import HtamError
from artifacts.run_events import TaskFinished
from optimizer.arms import Arm
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget
from optimizer.llm.protocol import LlmClient, LlmRequest
from optimizer.prompting.context import PromptContexts
from optimizer.search.effects import EffectLog, Effects, Measurer, Suspended
from optimizer.search.loop import finish, start, step, stop_reason, tune_constants
from optimizer.search.measure import check_reference, confirm
from optimizer.search.population import Population
from optimizer.search.task_search import RunSettings, TaskSearch
from optimizer.tasks import Task

SURE = 2 / 3
"""Part of its T steps that a task gets in any case; the rest moves to the tasks that improved last.

A task that has not gained for long seldom does so again, whatever the state of its best candidate promises
(docs/decisions/0012-no-simulator.md).
"""
MOST = 2
"""Times T that a task gets at most."""
WAVES = 3
"""A wave is one step for a third of the tasks that are open, so that a gain counts before all steps are given away."""

Work = Callable[[TaskSearch], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands after a session.

    Attributes:
        finished: tasks that are done, in the order of the tasks; none while any is suspended.
        suspended: task id → why it cannot continue now.
        unusable: task id → why its reference cannot be evaluated; nothing was asked for these tasks.
        problem: what a user must solve before the rest can go on; None when nothing is wrong.
        open_requests: effect key → request that waits for an answer from a file.
        open_jobs: effect key → job that waits for a measurement from a file.
    """

    finished: tuple[TaskFinished, ...]
    suspended: dict[str, str]
    unusable: dict[str, str]
    problem: HtamError | None
    open_requests: dict[str, LlmRequest]
    open_jobs: dict[str, EvaluationJob]

    @property
    def complete(self) -> bool:
        """Whether every task is finished."""
        return not self.suspended


class Session:
    """Advances a run; make a new one each time.

    Args:
        llm, evaluations: None when answers or measurements come through files.
        at_once: questions under way at most, see :class:`optimizer.search.effects.Effects`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        arm: Arm,
        run: RunSettings,
        log: EffectLog,
        *,
        llm: LlmClient | None = None,
        evaluations: Measurer | None = None,
        budget: Budget | None = None,
        at_once: int = 16,
    ) -> None:
        self._settings = run.search
        self._effects = Effects(log, llm=llm, evaluations=evaluations, budget=budget, at_once=at_once)
        contexts = PromptContexts(arm, run.target)
        self.searches = [
            TaskSearch(
                task=task,
                arm=arm,
                run=run,
                effects=self._effects,
                contexts=contexts,
                population=Population(run.search),
            )
            for task in tasks
        ]
        self._suspended: dict[str, str] = {}
        self._problem: HtamError | None = None

    def stop(self) -> None:
        """Start nothing new; what is under way is finished and logged."""
        self._effects.stopping = True

    async def advance(self) -> Standing:
        """Go on until every task is finished or waits."""
        for search in self.searches:
            start(search)
        await self._side_by_side(self.searches, check_reference)
        usable = [search for search in self.searches if not search.unusable]
        await self._take_steps(usable)
        reasons = [stop_reason(search) or "all steps used" for search in usable]
        if not self._suspended:
            await self._side_by_side(usable, tune_constants)
        if not self._suspended and self._settings.confirm:
            await self._side_by_side(usable, confirm)
        ended = zip(usable, reasons, strict=True) if not self._suspended else ()
        return Standing(
            finished=tuple(finish(search, reason) for search, reason in ended),
            suspended=self._suspended,
            unusable={search.task_id: search.unusable for search in self.searches if search.unusable},
            problem=self._problem,
            open_requests=self._effects.open_requests,
            open_jobs=self._effects.open_jobs,
        )

    async def _take_steps(self, searches: Sequence[TaskSearch]) -> None:
        """All steps of the run: what every task is sure of, then, where steps move, wave by wave."""
        moving, share = self._settings.reallocate, self._settings.steps
        ready = [search for search in searches if search.task_id not in self._suspended]
        await self._side_by_side(ready, self._steps(sure_steps(share) if moving else share, self._effects.log.taken))
        while moving and not self._suspended:
            left = share * len(searches) - sum(search.steps_done for search in searches)
            wave = next_wave([search for search in searches if not stop_reason(search)], left, share)
            if not wave:
                break
            await self._side_by_side(wave, self._steps(1))

    async def _side_by_side(self, searches: Sequence[TaskSearch], work: Work) -> None:
        async with asyncio.TaskGroup() as group:
            for search in searches:
                group.create_task(self._work_on(search, work))

    async def _work_on(self, search: TaskSearch, work: Work) -> None:
        """Work on one task; what stops it stops no other."""
        try:
            await work(search)
        except Suspended as problem:
            self._suspended[search.task_id] = str(problem)
        except HtamError as problem:
            self._suspended[search.task_id] = str(problem)
            self._problem = self._problem or problem

    def _steps(self, count: int, taken: Mapping[str, int] = MappingProxyType({})) -> Work:
        async def work(search: TaskSearch) -> None:
            for _ in range(max(count, taken.get(search.task_id, 0))):
                if stop_reason(search):
                    break
                await step(search)

        return work


def sure_steps(steps: int) -> int:
    """Steps that every task takes when ``steps`` is its share."""
    return math.ceil(steps * SURE)


def next_wave(open_tasks: Sequence[TaskSearch], left: int, steps: int) -> list[TaskSearch]:
    """The tasks that take one more step; none when no step is ``left`` or no task may have it.

    Args:
        open_tasks: those for which a further step is worth its cost, in the order of the run.
        left: steps of the whole suite that are not used yet.
        steps: share of one task.
    """
    able = [task for task in open_tasks if task.steps_done < MOST * steps]
    able.sort(key=lambda task: (task.fruitless, task.steps_done))
    return able[: min(left, math.ceil(len(able) / WAVES))]
