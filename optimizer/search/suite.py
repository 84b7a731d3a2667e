"""All tasks of a run side by side, and budget that moves to where a further step promises most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from artifacts.errors import HtamError
from artifacts.run_events import TaskFinished
from optimizer.search.board import Board
from optimizer.search.settings import SearchSettings
from optimizer.search.suspension import Suspended
from optimizer.search.task_search import TaskSearch

Promise = Callable[[TaskSearch], float]
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
    """Runs the searches of all tasks of a run.

    Args:
        promise: expected log2 gain of a further step of a search.
    """

    def __init__(
        self, searches: Sequence[TaskSearch], settings: SearchSettings, board: Board, promise: Promise
    ) -> None:
        self._searches = searches
        self._settings = settings
        self._board = board
        self._promise = promise
        self._reasons: dict[str, str] = {}
        self._suspended: dict[str, str] = {}
        self._problem: HtamError | None = None

    async def run(self) -> SuiteResult:
        """Go on until every task is finished or cannot go on now."""
        for search in self._searches:
            search.start()
        await self._side_by_side(self._searches, self._steps(self._settings.steps))
        while not self._suspended and (granted := self._grants()):
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

    def _grants(self) -> list[TaskSearch]:
        """The searches that get one more step: as many as steps are left over, the most promising first."""
        if not self._settings.reallocate:
            return []
        used = sum(search.steps_done for search in self._searches)
        left = self._settings.steps * len(self._searches) - used
        open_ones = [search for search in self._searches if not search.done()]
        return sorted(open_ones, key=lambda search: -self._promise(search))[: max(left, 0)]


def _name(search: TaskSearch) -> str:
    return search.task.ref.task_id
