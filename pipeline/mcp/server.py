"""The tools and resources that a coding agent is given, over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import traceback
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import NoReturn, ParamSpec, TypeVar

import pyarrow.compute as pc
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp_types import ToolAnnotations

from artifacts.candidate import source_hash
from artifacts.errors import BadInputError, HtamError
from optimizer.prompting.text import clean
from pipeline.commands.explain import explained
from pipeline.mcp.agent_task import AgentTask, Job
from pipeline.mcp.answers import Kernel, Question, Recall, TaskStatus, Verdict, kernel_of, recalled, status_of, verdict
from pipeline.mcp.session import AgentSession, SessionSettings
from pipeline.memory_text import shown

INSTRUCTIONS = """\
HTAM judges GPU and CPU kernels and remembers what made them fast. For each operator: call recall once before you write,
evaluate every candidate (the first answers with a handle while it runs: ask job), recall again when you are stuck or a
candidate failed, and finish at the end. A candidate is a Python file that defines ModelNew; its work is done by kernels
of its own. Only evaluate measures; every evaluation is logged and cannot be taken back."""

LONGEST_WAIT_S = 50.0
"""Seconds that a call waits at most: clients give up on calls after a minute."""
SHORTEST_HASH = 6

P = ParamSpec("P")
T = TypeVar("T")


class Tools:
    """The tools, as methods: names, arguments and results are what clients see."""

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    async def recall(self, task: str, device: str = "", error: str = "") -> Recall:
        """Say what earlier work knows for an operator in its present state: experience, moves, kernels, pitfalls.

        Args:
            task: path of the task file, its source, or the id of an open task.
            device: another device whose experience is wanted, e.g. "h200".
            error: text of a failure that cures are wanted for; that of the last candidate by default.
        """
        found = await self._session.task(task)
        async with found.recalling:
            return recalled(found, device, *await asyncio.to_thread(found.recall, device, error))

    async def kernel(self, sha256: str) -> Kernel:
        """Give the source of a verified kernel that recall named, or of a candidate of this session, by its hash."""
        if len(sha256) < SHORTEST_HASH:
            raise BadInputError(f"{sha256!r} is too short", f"give {SHORTEST_HASH} digits of the hash or more")
        await self._session.resume()
        for task in self._session.tasks.values():
            for node in task.search.population.nodes:
                if node.sha256.startswith(sha256):
                    return kernel_of(task.search.task_id, node.measurement.speedup(), node.source, whole=True)
        table = self._session.memory.table
        for row in table.filter(pc.not_equal(table["kernel"], "")).select(["task_id", "kernel"]).to_pylist():
            if source_hash(row["kernel"]).startswith(sha256):
                return kernel_of(row["task_id"], None, row["kernel"], whole=True)
        raise BadInputError(f"no kernel {sha256[:64]!r}", "recall names the kernels that memory has for a task")

    async def evaluate(
        self,
        task: str,
        candidate: str = "",
        source: str = "",
        incumbent: str = "",
        plan: str = "",
        strategies: list[str] | None = None,
        wait_s: float = 30.0,
    ) -> Verdict:
        """Build, check and time a candidate; it is logged as a step of the task's run.

        Args:
            task: path of the task file, its source, or the id of an open task.
            candidate: path of the candidate; or give its text as ``source``.
            incumbent: hash of the earlier candidate that it was made from; by default the best so far.
            plan: what it does differently, in a sentence or two: later readers learn from it.
            strategies: ids of the strategies of recall that it follows.
            wait_s: seconds to wait for the verdict; after that ask ``job`` with the handle.
        """
        if bool(candidate) == bool(source):
            raise BadInputError("give either candidate (a path) or source (its text)", "one of them")
        found = await self._session.task(task)
        text = source or self._session.text_of(candidate)
        job = found.submit(text, plan[:2000], tuple(strategies or ()), incumbent)
        return await _after(found, job, wait_s)

    async def job(self, handle: str, wait_s: float = 30.0) -> Verdict:
        """Say what became of a candidate, or of finish, by the handle that evaluate or finish gave."""
        return await _after(*self._session.job(handle), wait_s)

    async def status(self) -> list[TaskStatus]:
        """Say where the tasks of this session stand: steps, jobs under way, best candidate, evaluations left."""
        await self._session.resume()
        return [status_of(task) for task in self._session.tasks.values()]

    async def finish(self, task: str, wait_s: float = 30.0) -> Verdict:
        """Measure the best candidate of a task again, write it to a file that can be used, and end the task."""
        found = await self._session.task(task)
        return await _after(found, found.close(), wait_s)

    async def explain(self, task: str, step: str) -> str:
        """Say why a step of a task or of an open run came out as it did; ``step`` is like "2.0"."""
        name = self._session.searches.get(task)
        run = (await self._session.task(task)).run if name is None else name.run
        return clean(explained(run.log.path, step, prompt=False))

    async def open_run(self, name: str, tasks: list[str], steps: int = 6) -> Question:
        """Begin, or go on with, a run in which the search chooses and asks, and you write the answers.

        Args:
            name: of the run, in a-z, 0-9 and _.
            tasks: paths of task files.
            steps: candidates of each task.
        """
        await self._session.open_run(name, tasks, steps)
        return await self.ask(name)

    async def ask(self, run: str, wait_s: float = 30.0) -> Question:
        """Give the open question of a run: a whole prompt, and the key to answer it with."""
        await asyncio.wait([self._session.search_run(run).work], timeout=min(wait_s, LONGEST_WAIT_S))
        return self._session.question(run)

    async def tell(self, run: str, key: str, answer: str, wait_s: float = 30.0) -> Question:
        """Answer a question of a run, in the form its prompt asks for; gives the next question once it is measured."""
        self._session.tell(run, key, answer)
        return await self.ask(run, wait_s)


READING = ("recall", "kernel", "job", "status", "explain", "ask")
NAMES = (*READING, "evaluate", "finish", "open_run", "tell")


def make_server(session: AgentSession) -> MCPServer:
    """The server of a session."""
    server: MCPServer = MCPServer(
        "htam", instructions=INSTRUCTIONS, version=version("htam-kernels"), log_level="WARNING"
    )
    tools = Tools(session)
    for name in NAMES:
        hints = ToolAnnotations(read_only_hint=name in READING, destructive_hint=False, open_world_hint=False)
        server.add_tool(_one_line(getattr(tools, name)), annotations=hints)

    @server.resource("htam://memory")
    async def memory() -> str:
        """What the memory of this session holds."""
        return await _resource(session, None)

    @server.resource("htam://memory/{item}")
    async def part(item: str) -> str:
        """A direction or strategy of the memory, by its id."""
        return await _resource(session, item)

    return server


async def serve(settings: SessionSettings) -> NoReturn:
    """Serve one client over stdin and stdout until it is gone; then the process ends, and all its children."""
    session = AgentSession(settings)
    served = asyncio.ensure_future(make_server(session).run_stdio_async())
    await asyncio.wait([served])
    await session.close()
    problem = served.exception()
    if problem is not None:
        with contextlib.suppress(OSError):  # nobody may be there to read it
            traceback.print_exception(problem)
    os._exit(0 if problem is None else 1)  # threads that wait for a device would keep a process that has nobody


async def _resource(session: AgentSession, item: str | None) -> str:
    await session.resume()
    try:
        return clean(shown(session.memory, item, as_json=False))
    except HtamError as problem:
        raise ResourceError(str(problem)) from problem


async def _after(task: AgentTask, job: Job, wait_s: float) -> Verdict:
    """The verdict once it is known or ``wait_s`` are over."""
    await asyncio.wait([job.work], timeout=max(0.0, min(wait_s, LONGEST_WAIT_S)))
    return verdict(task, job)


def _one_line(tool: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """``tool`` with what its caller can put right said in one line."""

    @functools.wraps(tool)
    async def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await tool(*args, **kwargs)
        except HtamError as problem:
            raise ToolError(str(problem)) from problem

    return told
