"""All tasks of a run side by side, and budget that moves to the tasks that still improve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from artifacts.errors import HtamError
from artifacts.run_events import TaskFinished
from optimizer.search.allotment import next_wave, sure_steps
from optimizer.search.board import Board
from optimizer.search.settings import SearchSettings
from optimizer.search.suspension import Suspended
from optimizer.search.task_search import TaskSearch

Work = Callable[[TaskSearch], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """Where a suite stands.

    Attributes:
        finished: tasks that are done, in the order of the tasks.
        suspended: task id → why it cannot go on now.
        problem: what a user must solve before the rest can go on; None when nothing is wrong.
    """

    finished: tuple[TaskFinished, ...]
    suspended: dict[str, str]
    problem: HtamError | None


class Suite:
    """Runs the searches of all tasks of a run."""

    def __init__(self, searches: Sequence[TaskSearch], settings: SearchSettings, board: Board) -> None:
        self._searches = searches
        self._settings = settings
        self._board = board
        self._reasons: dict[str, str] = {}
        self._suspended: dict[str, str] = {}
        self._problem: HtamError | None = None

    async def run(self) -> SuiteResult:
        """Go on until every task is finished or cannot go on now."""
        for search in self._searches:
            search.start()
        share = self._settings.steps
        await self._side_by_side(self._searches, self._steps(sure_steps(share) if self._moving else share))
        while self._moving and not self._suspended and (granted := self._wave()):
            await self._side_by_side(granted, self._steps(1))
        if not self._suspended:
            await self._side_by_side(self._searches, TaskSearch.tune)
        if not self._suspended and self._settings.confirm:
            await self._side_by_side(self._searches, TaskSearch.confirm)
        finished = tuple(
            search.finish(self._reasons.get(_name(search), "all steps used"))
            for search in self._searches
            if not self._suspended
        )
        return SuiteResult(finished=finished, suspended=self._suspended, problem=self._problem)

    async def _side_by_side(self, searches: Sequence[TaskSearch], work: Work) -> None:
        async with asyncio.TaskGroup() as group:
            for search in searches:
                group.create_task(self._go_on(search, work))

    async def _go_on(self, search: TaskSearch, work: Work) -> None:
        """Work on one task; what stops it stops no other."""
        try:
            await work(search)
        except Suspended as problem:
            self._suspended[_name(search)] = str(problem)
        except HtamError as problem:
            self._suspended[_name(search)] = str(problem)
            self._problem = self._problem or problem
        finally:
            await self._board.leave(search, suspended=_name(search) in self._suspended)

    def _steps(self, count: int) -> Work:
        async def work(search: TaskSearch) -> None:
            for _ in range(count):
                reason = search.done()
                if reason:
                    self._reasons[_name(search)] = reason
                    break
                await self._board.wait_for(search)
                await search.step()
                await self._board.step_done(search)

        return work

    @property
    def _moving(self) -> bool:
        """Whether steps move between tasks."""
        return self._settings.reallocate

    def _wave(self) -> list[TaskSearch]:
        """The searches that get one more step."""
        used = sum(search.steps_done for search in self._searches)
        open_ones = [search for search in self._searches if not search.done()]
        return next_wave(open_ones, self._settings.steps * len(self._searches) - used, self._settings.steps)


def _name(search: TaskSearch) -> str:
    return search.task.ref.task_id
