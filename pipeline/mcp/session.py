"""A session of an agent: the tasks and runs that it works on, one evaluator for all, and nothing outside its root."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.codec import encode
from artifacts.errors import BadInputError, HtamError
from artifacts.memory.htg import Memory
from artifacts.runlog import RunLog
from optimizer.evaluation.job import Evaluator
from optimizer.llm.cassette import Cassette
from optimizer.llm.protocol import LlmAnswer
from optimizer.run.manifest import read_manifest
from optimizer.run.opening import OpenRun, release_memory
from optimizer.run.resources import CASSETTE
from optimizer.run.winners import winner_name, write_winners
from optimizer.search.measure import EvaluationQueue
from optimizer.search.session import Session, Standing
from optimizer.tasks import Task, load_task, load_tasks
from pipeline.library import open_run
from pipeline.mcp.agent_task import LONGEST_SOURCE, AgentTask, Job
from pipeline.mcp.answers import Question

ARMS = {"none": "feedback", "memory": "htam", "shuffled": "shuffled"}
"""What ``--recall`` names, as the arm whose memory is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What a session may do.

    Attributes:
        root: below which everything lies that a tool may read.
        runs: folder of the session's run directories, one a task.
        recall: of :data:`ARMS`.
        evaluations: candidates of each task that are measured at most; None for no limit.
        agent: name of the model in the log.
        words: options of ``htam optimize`` that say where the memory is, how to measure, and so on.
    """

    root: Path
    runs: Path
    recall: str
    evaluations: int | None
    agent: str
    words: tuple[str, ...]


@dataclass(slots=True)
class SearchRun:
    """A run in which the search asks and the agent answers."""

    run: OpenRun
    work: asyncio.Future[Standing]


@dataclass(slots=True)
class AgentSession:
    """The state behind the tools; lives in one event loop."""

    settings: SessionSettings
    tasks: dict[str, AgentTask] = field(default_factory=dict)
    searches: dict[str, SearchRun] = field(default_factory=dict)
    _queue: EvaluationQueue | None = None
    _evaluator: Evaluator | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _resumed: bool = False

    @property
    def memory(self) -> Memory:
        """What the task opened last is shown, without what that task must not be told.

        Raises:
            BadInputError: no task is open, or the session has no memory.
        """
        memories = [task.run.arm.memory for task in self.tasks.values()]
        if not memories:
            raise BadInputError("no task is open", "call recall for a task first")
        if memories[-1] is None:
            raise BadInputError("this session has no memory", "write from the task and its measurements")
        return memories[-1]

    def text_of(self, path: str) -> str:
        """A file below the root.

        Raises:
            BadInputError: as for :meth:`inside`, or it is not UTF-8.
        """
        try:
            return self.inside(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as problem:
            raise BadInputError(f"{path} is not UTF-8 text", "give a Python source file") from problem

    def inside(self, path: str) -> Path:
        """The file that ``path`` names, links followed.

        Raises:
            BadInputError: it is not a file below the root, or longer than any source.
        """
        try:
            file = (self.settings.root / path).resolve()
            known = file.is_relative_to(self.settings.root) and file.is_file()
        except (ValueError, OSError):  # no path at all, or too long for one
            known = False
        if not known:
            raise BadInputError(f"{path[:200]!r} is no file below {self.settings.root}", "name one that is")
        if file.stat().st_size > LONGEST_SOURCE:
            raise BadInputError(f"{path} has {file.stat().st_size:,} bytes", f"give {LONGEST_SOURCE:,} at most")
        return file

    async def task(self, task: str) -> AgentTask:
        """The task of a file or source, or one that is open by its id, with its run; it is resumed if it exists.

        Raises:
            HtamError: it is no task, its memory is gone, or another process writes to its run.
        """
        if task in self.tasks:
            return self.tasks[task]
        async with self._opening:
            found = self._load(task)
            name = found.ref.task_id
            if name not in self.tasks:
                run = await self._open(winner_name(name), [found], f"agent:{self.settings.agent}")
                try:
                    self.tasks[name] = AgentTask(run, self.queue, self.settings.evaluations)
                except HtamError:
                    run.log.close()
                    raise
        if self.tasks[name].search.task.source != found.source:
            raise BadInputError(f"{name} was another task before", "give the changed task another file name")
        return self.tasks[name]

    async def resume(self) -> None:
        """Take up the tasks of an earlier session in the same folder, once, for tools that look at all of them.

        Those that another process writes to, or whose file is gone or has changed, are left out.
        """
        if self._resumed:
            return
        self._resumed = True
        for path in sorted(self.settings.runs.glob("*/manifest.json")):
            with contextlib.suppress(HtamError):
                manifest = read_manifest(RunLog.open(path.parent))
                if manifest.llm.startswith("agent:"):
                    await self.task(manifest.tasks[0].path)

    def job(self, handle: str) -> tuple[AgentTask, Job]:
        """The job that ``handle`` names.

        Raises:
            BadInputError: there is none in this session.
        """
        for task in self.tasks.values():
            if handle in task.jobs:
                return task, task.jobs[handle]
        raise BadInputError(f"no job {handle[:200]!r}", "see status for the jobs of this session")

    async def open_run(self, name: str, paths: list[str], steps: int) -> None:
        """Begin, or go on with, a run in which the search asks.

        Raises:
            BadInputError: a name that is none, or no tasks.
            HtamError: as for :meth:`task`.
        """
        if name in self.searches:
            raise BadInputError(f"run {name!r} is open", "go on with ask")
        if winner_name(name) != name:
            raise BadInputError(f"{name[:200]!r} is no name for a run", "use a-z, 0-9 and _")
        tasks = list(load_tasks(self.inside(path) for path in paths))
        run = await self._open(name, tasks, f"files:{self.settings.agent}", "--steps", str(steps), "--fixed-steps")
        self.searches[name] = SearchRun(run, asyncio.ensure_future(self._advance(run)))

    def search_run(self, name: str) -> SearchRun:
        """The open run of that name.

        Raises:
            BadInputError: there is none.
        """
        if name not in self.searches:
            raise BadInputError(f"no open run {name[:200]!r}", "open it with open_run")
        return self.searches[name]

    def question(self, name: str) -> Question:
        """What the run of that name asks now.

        Raises:
            BadInputError: there is none.
            HtamError: it cannot go on.
        """
        found = self.search_run(name)
        path = str(found.run.log.path)
        if not found.work.done():
            return Question(run=path, state="running")
        standing = found.work.result()
        if standing.problem is not None:
            raise standing.problem
        if standing.complete:
            return Question(run=path, state="complete", report=f"htam report {path}")
        key, request = next(iter(standing.open_requests.items()))
        prompt = "\n\n".join(message.content for message in request.messages)
        return Question(run=path, state="open", key=key, prompt=prompt, open=len(standing.open_requests))

    def tell(self, name: str, key: str, text: str) -> None:
        """Log the answer to an open question and let the run go on.

        Raises:
            BadInputError: nobody asks that, or the text is too long.
        """
        found = self.search_run(name)
        if not found.work.done() or key not in found.work.result().open_requests:
            raise BadInputError(f"run {name} does not ask {key[:200]!r}", "call ask for what it asks")
        if len(text) > LONGEST_SOURCE:
            raise BadInputError(f"the answer has {len(text):,} characters", f"give {LONGEST_SOURCE:,} at most")
        request, answer = found.work.result().open_requests[key], LlmAnswer(text=text, model=self.settings.agent)
        cassette = Cassette(found.run.log.path / CASSETTE, writable=True)
        cassette.append(request, answer)
        cassette.close()
        found.run.effect_log.put("answer", key, encode(answer))
        found.work = asyncio.ensure_future(self._advance(found.run))

    @property
    def queue(self) -> EvaluationQueue:
        """The evaluator of this process, started on first use: its children live as long as this thread."""
        if self._queue is None:
            from optimizer.evaluation.worker.local import LocalEvaluator

            self._evaluator = LocalEvaluator(workers=2)
            self._queue = EvaluationQueue(self._evaluator)
        return self._queue

    async def close(self) -> None:
        """End what is under way, all children, and the logs; what is logged stays whole."""
        work: list[asyncio.Future[Any]] = [job.work for task in self.tasks.values() for job in task.jobs.values()]
        work += [search.work for search in self.searches.values()]
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        if self._evaluator is not None:
            await asyncio.to_thread(self._evaluator.close)
        for run in [task.run for task in self.tasks.values()] + [search.run for search in self.searches.values()]:
            run.log.close()

    def _load(self, task: str) -> Task:
        if "\n" not in task:
            return load_task(self.inside(task))
        if len(task) > LONGEST_SOURCE:
            raise BadInputError(f"the task has {len(task):,} characters", f"give {LONGEST_SOURCE:,} at most")
        digest = hashlib.sha256(task.encode("utf-8", "replace")).hexdigest()[:8]
        file = self.settings.runs / "sources" / f"source_{digest}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(task, encoding="utf-8")
        return load_task(file)

    async def _open(self, name: str, tasks: list[Task], llm: str, *more: str) -> OpenRun:
        words = ["--llm", llm, "--arm", ARMS[self.settings.recall], *self.settings.words, *more]
        return await asyncio.to_thread(open_run, tasks, self.settings.runs / name, words)

    async def _advance(self, run: OpenRun) -> Standing:
        session = Session(run.tasks, run.arm, run.settings(), run.effect_log, evaluations=self.queue)
        standing = await session.advance()
        write_winners(run.log.path, session.searches, run.manifest)
        if standing.complete:
            release_memory(run.log.path, run.manifest)
        return standing
