"""What a model is told at a step: the task, its past, and what the arm's memory has to say."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from optimizer.arms import Arm
from optimizer.arms.intents import Intent
from optimizer.llm.prompt import Advice, Attempt, Exemplar, Fix, Situation
from optimizer.search.cargo import Cargo
from optimizer.search.exemplars import Exemplars
from optimizer.search.fixes import FixBook
from optimizer.search.ledger import Ledger
from optimizer.search.notes import Note, notes
from optimizer.search.plan import Plan
from optimizer.search.population import Node, Population
from optimizer.search.situation import Target
from optimizer.search.wording import told
from optimizer.tasks import Task


class Briefing:
    """Puts together what the prompt of a step may say; one serves all tasks of a run."""

    def __init__(self, arm: Arm, target: Target) -> None:
        self._arm = arm
        self._book = FixBook(arm.memory) if arm.memory is not None and arm.fixes else None
        self._cargo = Cargo(arm.memory, target.language) if arm.memory is not None else None
        self._ledger: Ledger | None = None
        self._exemplars: Exemplars | None = None
        if arm.memory is not None and self._cargo is not None:
            self._ledger = Ledger(arm.memory, self._cargo, target.arch, target.language.value)
            self._exemplars = Exemplars(arm.memory, target.arch, target.language.value)

    def situation(
        self,
        task: Task,
        population: Population,
        plan: Plan,
        *,
        slot: str,
        sample: int,
        intents: tuple[Intent, ...] = (),
        overlay: Sequence[Transition] = (),
    ) -> Situation:
        """Everything the prompt may say at ``slot`` (``<step>.<candidate>``); ``sample`` numbers the run's slots."""
        arm, choice, memory = self._arm, plan.choice, self._arm.memory
        parent = None if plan.parent_id is None else population.node(plan.parent_id)
        shown = () if arm.restarts else _shown(population, parent)
        lineage = population.lineage(parent)
        others = [one for one in overlay if one.task.task_id != task.ref.task_id] if arm.learns else []
        record = self._record(plan, others)
        return Situation(
            task_id=task.ref.task_id,
            task_source=task.source,
            slot=slot,
            sample=sample,
            parent_source="" if parent is None else parent.source,
            measurement=None if parent is None else parent.measurement,
            intent="" if parent is None else parent.plan,
            direction=memory.direction(choice.direction) if memory is not None and choice.direction else None,
            strategies=self._advice(plan, task.ref.family),
            record=record,
            exemplar=self._exemplar(task, plan, others),
            notes=() if record else self._notes(plan),
            tried=tuple(_attempt(population, node, memory, kept=node in lineage) for node in shown),
            fixes=self._fixes(parent),
            planning=arm.plans,
            intents=tuple(_intent(intent) for intent in intents),
            intent_now="" if choice.intent is None else f"{choice.intent.number}. {choice.intent.text}",
        )

    def _advice(self, plan: Plan, family: str) -> tuple[Advice, ...]:
        memory, cargo = self._arm.memory, self._cargo
        if memory is None or cargo is None:
            return ()
        return tuple(
            Advice(
                strategy=cargo.fitting(memory.strategy(use.strategy_id), family),
                lead=use.mean - (plan.choice.expected or 0.0),
                spread=use.spread,
                effective_n=use.effective_n,
            )
            for use in plan.choice.strategies
        )

    def _open(self, plan: Plan) -> bool:
        """Whether memory may say more than a direction: none is given, nothing is repaired, and the arm shows texts."""
        return self._arm.fixes and not plan.choice.direction and plan.mode != "repair"

    def _record(self, plan: Plan, learnt: Sequence[Transition]) -> str:
        """What is known of the device at hand, by the memory and by other tasks of the run."""
        if self._ledger is None or not self._open(plan):
            return ""
        return told(self._ledger, plan.state, learnt)

    def _exemplar(self, task: Task, plan: Plan, learnt: Sequence[Transition]) -> Exemplar | None:
        """A kernel to learn from, whatever direction is given; a repair has its own code to look at."""
        if self._exemplars is None or not self._arm.fixes or plan.mode == "repair":
            return None
        return self._exemplars.nearest(task, plan.state, learnt)

    def _notes(self, plan: Plan) -> tuple[str, ...]:
        """What is known from elsewhere."""
        memory, cargo = self._arm.memory, self._cargo
        if memory is None or cargo is None or not self._open(plan):
            return ()
        return tuple(_told(note) for note in notes(memory, cargo, plan.state))

    def _fixes(self, parent: Node | None) -> tuple[Fix, ...]:
        if parent is None or parent.correct or self._book is None:
            return ()
        return self._book.like(parent.measurement.outcome, parent.measurement.error)


def _told(note: Note) -> str:
    return f"{note.name} ({2**note.gain:.2f}x on {note.family}, {note.arch}): {note.text}"


def _intent(intent: Intent) -> str:
    """One intent of the model's list, with what became of it."""
    rating = f"priority {intent.priority:g}, difficulty {intent.difficulty}"
    fate = f"closed: {intent.closed}" if intent.closed else "open"
    return f"{intent.number}. [{fate}; {rating}; {intent.tries} tries, {intent.fruitless} in vain] {intent.text}"


def _shown(population: Population, parent: Node | None) -> tuple[Node, ...]:
    """Earlier candidates that a prompt tells of; of one to be repaired the intent is told elsewhere."""
    hidden = None if parent is None or parent.correct else parent
    return tuple(node for node in population.nodes if node is not hidden)


def _attempt(population: Population, node: Node, memory: Memory | None, *, kept: bool) -> Attempt:
    named = memory is not None and bool(node.direction)
    return Attempt(
        plan=node.plan,
        outcome=node.measurement.outcome,
        gain=population.gain(node),
        direction=memory.direction(node.direction).name if memory is not None and named else "",
        error=node.measurement.error,
        kept=kept,
    )
