"""The search of one task: plan a step, turn answers into candidates, learn from what was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from artifacts.codec import decode, encode
from artifacts.measurement import Measurement
from artifacts.memory.records import Transition
from artifacts.run_events import LoggedStep, TaskFinished, TaskStarted
from artifacts.state import State
from optimizer.arms import Arm, ArmContext, Choice
from optimizer.arms.intents import Intent, edited, tried
from optimizer.evaluation.job import EvaluationJob
from optimizer.search.author import Author
from optimizer.search.briefing import Briefing
from optimizer.search.confirmation import Confirmation, confirm
from optimizer.search.gateway import Gateway
from optimizer.search.journal import Journal
from optimizer.search.overlay import transition_of
from optimizer.search.plan import Attempted, Plan, RunSettings, node_of
from optimizer.search.population import Node, Population
from optimizer.search.situation import state_of
from optimizer.search.suspension import all_of
from optimizer.tasks import Task
from optimizer.tuning.declared import declared_or_none
from optimizer.tuning.search import Variant, label_of, tune


class TaskSearch:
    """One task of a run; :meth:`step` is called until the steps are used up or it says that it is done.

    Args:
        briefing: puts together what prompts say.
        overlay: gives the transitions that a step with that index may look at.
    """

    def __init__(
        self,
        task: Task,
        arm: Arm,
        run: RunSettings,
        journal: Journal,
        gateway: Gateway,
        briefing: Briefing,
        overlay: Callable[[int], Sequence[Transition]] | None = None,
    ) -> None:
        self.task = task
        self.population = Population(run.search)
        self.learnt: list[list[Transition]] = []
        self.confirmation = Confirmation()
        self.intents: tuple[Intent, ...] = ()
        self._arm = arm
        self._run = run
        self._journal = journal
        self._gateway = gateway
        self._briefing = briefing
        self._author = Author(run.prompt, journal, gateway, plans=arm.plans)
        self._overlay = overlay or self.learnt_before

    @property
    def steps_done(self) -> int:
        """Steps that are complete."""
        return len(self.learnt)

    @property
    def fruitless(self) -> int:
        """Steps since the one that gave the best candidate; 0 as long as there is no correct one."""
        best = self.population.best
        return 0 if best is None else self.steps_done - 1 - best.index

    def start(self) -> None:
        """Log that the task is taken up."""
        sha256 = self._journal.log.add_candidate(self.task.source)
        started = TaskStarted(task=self.task.ref, source_sha256=sha256, path=self.task.path)
        self._journal.put("task_started", self.task.ref.task_id, encode(started))

    def learnt_before(self, index: int) -> list[Transition]:
        """Transitions of this task's steps before ``index``."""
        return [transition for step in self.learnt[:index] for transition in step]

    async def step(self) -> None:
        """Do one step: all its candidates, side by side."""
        plans = self._plans()
        attempts = await all_of(self._attempt(slot, plan) for slot, plan in plans)
        rivals = [self.population.incumbent(self._parent(plan)) for _, plan in plans]  # before any of them is added
        found = [self._absorb(one, rival) for one, rival in zip(attempts, rivals, strict=True)]
        self.learnt.append([transition for transition in found if transition is not None])

    async def tune(self) -> None:
        """Search the constants that the best candidate declares; a clearly faster setting becomes a step."""
        best, settings = self.population.best, self._run.tuning
        found = None if best is None or settings is None else declared_or_none(best.source)
        if best is None or settings is None or found is None or found.combinations < 2:
            return

        async def measure(variants: Sequence[Variant]) -> Sequence[Measurement]:
            return await all_of(self._variant(best, variant) for variant in variants)

        tuned = await tune(best.source, found, best.measurement, measure, settings)
        if tuned.improved:
            plan = Plan(mode="tune", parent_id=best.step_id, state=self.state(best), choice=Choice(arm=self._arm.name))
            slot = f"{self.steps_done}.0"
            self._journal.put("choice", self._key(slot), encode(plan))
            attempted = Attempted(
                plan=plan,
                slot=slot,
                source=tuned.source,
                sha256=self._journal.log.add_candidate(tuned.source),
                words=f"set {label_of(tuned.setting)}, the best of {len(tuned.trials) + 1} measured settings",
                measurement=tuned.measurement,
            )
            self._absorb(attempted, best)
            self.learnt.append([])

    async def _variant(self, best: Node, variant: Variant) -> Measurement:
        place = f"{best.step_id}/{variant.label}"
        return await self._gateway.evaluate(self._key(place), self._job(place, variant.source, best))

    async def confirm(self) -> None:
        """Measure the winner again, in a job of its own and beside nothing but the baselines."""
        self.confirmation = await confirm(self.population, self._again)

    async def _again(self, node: Node) -> Measurement:
        place = f"{node.step_id}/confirm"
        job = replace(self._job(place, node.source, node), incumbent_source="")
        return await self._gateway.evaluate(self._key(place), job)

    def done(self) -> str:
        """Why further steps are not worth their cost; empty when they are."""
        if not self._run.search.reallocate:
            return ""
        best = self.population.best
        profile = None if best is None else best.measurement.profile
        fraction = None if profile is None else profile.fraction_of_bound
        if fraction is not None and fraction >= self._run.search.near_bound:
            return f"near the bound: {fraction:.0%} of the speed of light is reached"
        return ""

    def finish(self, reason: str) -> TaskFinished:
        """Log and return how the search ended."""
        best = self.population.best
        speedups: dict[str, float] = {}
        if best is not None:
            measured = self.confirmation.measurement or best.measurement
            speedups = {name: measured.speedup(name) or 0.0 for name in sorted(measured.baselines)}
        finished = TaskFinished(
            task_id=self.task.ref.task_id,
            reason=reason,
            steps=self.steps_done,
            best_step="" if best is None else best.step_id,
            best_sha256="" if best is None else best.sha256,
            speedups=speedups,
            confirmed=self.confirmation.measurement,
            refuted=self.confirmation.refuted,
        )
        return decode(TaskFinished, self._journal.put("task_finished", self.task.ref.task_id, encode(finished)))

    def state(self, parent: Node | None) -> State:
        """State before the coming step from ``parent``."""
        return state_of(self.task, self._run.target, self.population, parent, self.steps_done)

    def _key(self, slot: str) -> str:
        return f"{self.task.ref.task_id}/{slot}"

    def _plans(self) -> list[tuple[str, Plan]]:
        count = self._run.search.candidates
        parents = [None] * count if self._arm.restarts else self.population.parents(count)
        plans: list[tuple[str, Plan]] = []
        taken: set[str] = set()
        for number, parent in enumerate(parents):
            slot = f"{self.steps_done}.{number}"
            plan = self._plan(slot, parent, frozenset(taken | self.population.exhausted(parent)))
            taken |= {plan.choice.label} - {""}
            plans.append((slot, plan))
        return plans

    def _plan(self, slot: str, parent: Node | None, taken: frozenset[str]) -> Plan:
        known = self._journal.get("choice", self._key(slot))
        if known is not None:
            return decode(Plan, known)
        state = self.state(parent)
        if parent is not None and not parent.correct:
            kept = "repair: the intent is kept"
            choice = Choice(arm=self._arm.name, direction=parent.direction, intent=parent.intent, gate=kept)
            plan = Plan(mode="repair", parent_id=parent.step_id, state=state, choice=choice)
        else:
            seed = f"{self._run.seed}/{self._key(slot)}"
            overlay = self._overlay(self.steps_done)
            context = ArmContext(state=state, overlay=overlay, seed=seed, taken=taken, intents=self.intents)
            parent_id = None if parent is None else parent.step_id
            mode = "first" if parent is None else "optimize"
            plan = Plan(mode=mode, parent_id=parent_id, state=state, choice=self._arm.choose(context))
        return decode(Plan, self._journal.put("choice", self._key(slot), encode(plan)))

    async def _attempt(self, slot: str, plan: Plan) -> Attempted:
        parent = self._parent(plan)
        number = int(slot.rsplit(".", 1)[1])
        sample = self.steps_done * self._run.search.candidates + number
        situation = self._briefing.situation(
            self.task,
            self.population,
            plan,
            slot=slot,
            sample=sample,
            intents=self.intents,
            overlay=self._overlay(self.steps_done),
        )
        attempted = await self._author.write(self._key(slot), slot, plan, situation)
        if not attempted.source:
            return attempted
        twin = next((node for node in self.population.nodes if node.sha256 == attempted.sha256), None)
        if twin is not None:
            return Attempted(plan=plan, slot=slot, error=f"the answer repeats the candidate of step {twin.step_id}")
        measurement = await self._gateway.evaluate(self._key(slot), self._job(slot, attempted.source, parent))
        return replace(attempted, measurement=measurement)

    def _job(self, slot: str, source: str, parent: Node | None) -> EvaluationJob:
        key = self._key(slot)
        incumbent = self.population.incumbent(parent)
        seed = hashlib.sha256(f"{self._run.seed}/{key}/hidden".encode()).digest()
        return EvaluationJob(
            job_id=key,
            task_id=self.task.ref.task_id,
            task_source=self.task.source,
            candidate_source=source,
            incumbent_source="" if incumbent is None else incumbent.source,
            backend=self._run.backend,
            seed=int.from_bytes(seed[:6], "big"),
            settings=self._run.evaluation,
        )

    def _parent(self, plan: Plan) -> Node | None:
        return None if plan.parent_id is None else self.population.node(plan.parent_id)

    def _absorb(self, attempted: Attempted, incumbent: Node | None) -> Transition | None:
        plan, measurement = attempted.plan, attempted.measurement
        parent = self._parent(plan)
        step = LoggedStep(
            task_id=self.task.ref.task_id,
            step_id=attempted.slot,
            parent_id=plan.parent_id,
            index=self.steps_done,
            mode=plan.mode,
            candidate_sha256=attempted.sha256,
            parent_sha256="" if parent is None else parent.sha256,
            direction=plan.choice.direction,
            strategies=attempted.strategies,
            plan=attempted.words,
            state=plan.state,
            measurement=measurement,
            error=attempted.error,
            choice_probability=plan.choice.probability if plan.choice.direction else None,
            explored=plan.choice.explored,
            model=attempted.model,
        )
        self._journal.put("step", self._key(attempted.slot), encode(step))
        if plan.choice.intent is not None:
            self.intents = tried(self.intents, plan.choice.intent.number, improved=attempted.improved)
        self.intents = edited(self.intents, attempted.edits)
        if measurement is None:
            return None
        self.population.add(node_of(attempted, self.steps_done, measurement, incumbent))
        return transition_of(step, self.task, attempted.source, self._run.run, attempted.model)
