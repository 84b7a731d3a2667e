"""One task that an agent works on: the search of a run, with the agent in the place of arm and model.

The agent decides what to try and when; everything else is the search's own: what memory shows, what a candidate is
timed against, how it is measured, and the log, which no caller can write a measurement to.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from artifacts.candidate import source_hash
from artifacts.codec import decode, encode
from artifacts.device import device_spec
from artifacts.errors import BadInputError, BadTaskError, BudgetExceededError, UnavailableError
from artifacts.measurement import Measurement, Outcome
from artifacts.run_events import LoggedStep
from optimizer.arms import ArmContext, Choice
from optimizer.prompting.context import Parent, PromptContexts
from optimizer.prompting.request import PromptContext
from optimizer.run.opening import OpenRun, release_memory
from optimizer.run.winners import write_winners
from optimizer.search.effects import Effects, Measurer
from optimizer.search.learn import learn
from optimizer.search.loop import finish, start
from optimizer.search.measure import check_reference, confirm, measure
from optimizer.search.population import Node, Population
from optimizer.search.propose import logged, state_before
from optimizer.search.task_search import Attempt, Proposal, TaskSearch

LONGEST_SOURCE = 200_000
"""Characters of a candidate that are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work under way or done; of a candidate it has the step and the hash, of other work neither."""

    handle: str
    work: asyncio.Future[None]
    step_id: str = ""
    sha256: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        """Whether it ended without a result."""
        return self.work.done() and (self.work.cancelled() or self.work.exception() is not None)


class AgentTask:
    """A task with its own run directory.

    Args:
        run: holds one task and is written to by this process alone.
        most: candidates that are measured at most; None for no limit.
    """

    def __init__(self, run: OpenRun, measurer: Measurer, most: int | None) -> None:
        self.run = run
        self._most = most
        settings = run.settings()
        self._contexts = {settings.target: PromptContexts(run.arm, settings.target)}
        self.search = TaskSearch(
            task=run.tasks[0],
            arm=run.arm,
            run=settings,
            effects=Effects(run.effect_log, llm=None, evaluations=measurer),
            contexts=self._contexts[settings.target],
            population=Population(settings.search),
        )
        self.jobs: dict[str, Job] = {}
        self._turn = asyncio.Lock()
        self.recalling = asyncio.Lock()
        self._shown: dict[str, tuple[str, ...]] = {}
        self._choice = Choice(arm=run.arm.name)
        start(self.search)
        self._resume()

    @property
    def pending(self) -> int:
        """Jobs that are not done."""
        return sum(not job.work.done() for job in self.jobs.values())

    @property
    def finished(self) -> bool:
        """Whether the task takes no more candidates."""
        return self.search.log.get("task_finished", self.search.task_id) is not None

    @property
    def left(self) -> int | None:
        """Candidates that may still be measured; None for no limit."""
        if self._most is None:
            return None
        charged = [node for node in self.search.population.nodes if node.measurement.outcome.charged_to_candidate]
        return max(0, self._most - len(charged) - self.pending)

    def recall(self, device: str = "", error: str = "") -> tuple[Choice, PromptContext]:
        """What memory has for the state of the task: the arm's choice, and the parts of a prompt; logged.

        Args:
            device: in words, for experience from another device than the run's.
            error: of a candidate that failed, for cures; that of the last candidate when empty.
        """
        search = self.search
        target = replace(search.run.target, arch=device_spec(device).arch) if device else search.run.target
        contexts = self._contexts.setdefault(target, PromptContexts(self.run.arm, target))
        best = search.population.best
        state = replace(state_before(search, best), arch=target.arch)
        seed = f"{search.run.seed}/{search.key(str(search.steps_done))}"
        known = ArmContext(state=state, overlay=search.overlay, seed=seed)
        choice = search.arm.choose(known)
        plain = replace(choice, direction="", strategies=())
        parent = None if best is None else Parent(best.source, best.plan, best.measurement)

        def shown(choice: Choice, parent: Parent | None) -> PromptContext:
            return contexts.of_step(search.task, state, choice, slot="", sample=0, parent=parent)

        context = shown(plain, parent)
        if choice.direction:
            directed = shown(choice, parent)
            context = replace(context, direction=directed.direction, strategies=directed.strategies)
        failed = self._failed(error)
        context = replace(context, fixes=() if failed is None else shown(plain, failed).fixes)
        self._saw(choice, context)
        return choice, context

    def submit(self, source: str, plan: str, strategies: tuple[str, ...], incumbent: str) -> Job:
        """Queue a candidate; one that was measured before is its earlier job, and counts no second time.

        Raises:
            BadInputError: too long, or an unknown incumbent.
            BudgetExceededError: all evaluations are used, or the task is finished.
        """
        if len(source) > LONGEST_SOURCE:
            raise BadInputError(f"the source has {len(source):,} characters", f"give {LONGEST_SOURCE:,} at most")
        sha256 = source_hash(source)
        twin = next((job for job in self.jobs.values() if job.sha256 == sha256 and not job.failed), None)
        if twin is not None:
            return twin
        if self.finished:
            raise BudgetExceededError(f"{self.search.task_id} is finished", "start another session to go on")
        if self.left == 0:
            raise BudgetExceededError(f"all {self._most} evaluations of this task are used", "call finish")
        parent = self._named(incumbent) if incumbent else None
        number = self.search.steps_done + self.pending
        slot = self._free(number)
        return self._begin(slot, lambda: self._measured(slot, source, plan, strategies, parent), sha256)

    def close(self) -> Job:
        """Measure the winner again in a new process with other seeds, write it down, and take nothing more.

        Raises:
            BadInputError: candidates are still being measured.
        """
        key = self.search.key("finish")
        if key in self.jobs and not self.jobs[key].work.done():
            return self.jobs[key]
        if self.pending:
            raise BadInputError(f"{self.pending} candidates are being measured", "wait for them with job")
        return self._begin("finish", self._finished)

    def _begin(self, place: str, work: Callable[[], Awaitable[None]], sha256: str = "") -> Job:
        async def in_turn() -> None:
            async with self._turn:
                await work()

        step_id = place if sha256 else ""
        job = Job(handle=self.search.key(place), work=asyncio.ensure_future(in_turn()), step_id=step_id, sha256=sha256)
        self.jobs[job.handle] = job
        return job

    async def _measured(
        self, slot: str, source: str, plan: str, strategies: tuple[str, ...], parent: Node | None
    ) -> None:
        """One step of the search whose author is the agent."""
        search = self.search
        if search.steps_done != int(slot.partition(".")[0]):
            raise UnavailableError("a candidate before this one could not be measured", "evaluate it again")
        await check_reference(search)
        if search.unusable:
            raise BadTaskError(f"{search.task_id} cannot be evaluated: {search.unusable}", "correct the task file")
        parent = parent or self._likely_parent(source)
        incumbent = search.population.incumbent(parent)
        proposal = Proposal(
            slot=slot,
            mode="first" if parent is None else "optimize" if parent.correct else "repair",
            parent_id=None if parent is None else parent.step_id,
            incumbent_id=None if incumbent is None else incumbent.step_id,
            state=state_before(search, parent),
            choice=self._choice,
        )
        attempt = Attempt(
            proposal=logged(search, proposal),
            shown=dict(self._shown),
            source=source,
            sha256=self.run.log.add_candidate(source, sync=True),
            words=plan,
            strategies=strategies,
            model=self.run.manifest.model,
        )
        search.log.put("candidate", search.key(slot), {"sha256": attempt.sha256, "plan": plan})
        learn(search, [await measure(search, attempt)])
        self._choice = Choice(arm=self.run.arm.name)
        write_winners(self.run.log.path, [search], self.run.manifest)

    async def _finished(self) -> None:
        await confirm(self.search)
        used = f"all {self._most} evaluations used" if self.left == 0 else "ended by the agent"
        finish(self.search, used)
        write_winners(self.run.log.path, [self.search], self.run.manifest)
        release_memory(self.run.log.path, self.run.manifest)

    def _likely_parent(self, source: str) -> Node | None:
        """What a candidate was made from: the best so far, or the last one if that failed and is more like it."""
        nodes, best = self.search.population.nodes, self.search.population.best
        last = nodes[-1] if nodes and not nodes[-1].correct else None
        if last is None or best is None:
            return best or last
        lines = source.splitlines()
        return max(
            (best, last), key=lambda node: difflib.SequenceMatcher(None, lines, node.source.splitlines()).ratio()
        )

    def _named(self, name: str) -> Node:
        """The candidate that a hash begins, or that a step is called."""
        found = [node for node in self.search.population.nodes if name in (node.step_id, node.sha256[: len(name)])]
        if len(found) != 1:
            raise BadInputError(f"{name!r} names no candidate of {self.search.task_id}", "evaluate it first")
        return found[0]

    def _failed(self, error: str) -> Parent | None:
        """What cures are looked up for: the last candidate if it failed, or an error from elsewhere."""
        nodes = self.search.population.nodes
        last = nodes[-1] if nodes and not nodes[-1].correct else None
        if last is not None:
            return Parent(last.source, "", replace(last.measurement, error=error or last.measurement.error))
        if not error:
            return None
        elsewhere = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="", error=error)
        return Parent("(not evaluated here)", "", elsewhere)

    def _saw(self, choice: Choice, context: PromptContext) -> None:
        """Log what the agent has seen: the steps that follow carry it."""
        shown = context.shown(self.search.run.prompt.limits.items)
        number = sum(key.startswith(self.search.key("recall/")) for key, _ in self.search.log.of_kind("note"))
        self.search.log.put("note", self.search.key(f"recall/{number}"), {"shown": encode(shown)})
        self._choice = choice
        self._remember(shown)

    def _remember(self, shown: dict[str, tuple[str, ...]]) -> None:
        for part, ids in shown.items():
            self._shown[part] = tuple(dict.fromkeys((*self._shown.get(part, ()), *ids)))

    def _free(self, number: int) -> str:
        """A slot of a step that nothing was logged for: an evaluation that a dead server began stays as it is."""
        candidate = 0
        while self.search.log.get("choice", self.search.key(f"{number}.{candidate}")) is not None:
            candidate += 1
        return f"{number}.{candidate}"

    def _resume(self) -> None:
        """Take in what an earlier session logged."""
        for key, payload in self.search.log.of_kind("note"):
            if key.startswith(self.search.key("recall/")):
                self._remember({part: tuple(ids) for part, ids in payload["shown"].items()})
        for key, payload in self.search.log.of_kind("step"):
            step = decode(LoggedStep, payload)
            proposal = decode(Proposal, self.search.log.get("choice", key) or {})
            attempt = Attempt(
                proposal=proposal,
                shown=step.shown,
                source=self.run.log.candidate(step.candidate_sha256),
                sha256=step.candidate_sha256,
                words=step.plan,
                strategies=step.strategies,
                model=step.model,
                measurement=step.measurement,
            )
            learn(self.search, [attempt])
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            self.jobs[key] = Job(handle=key, work=done, step_id=step.step_id, sha256=step.candidate_sha256)
