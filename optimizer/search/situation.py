"""What selection sees (state) and what the prompt says (situation), from a task and its population."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck
from artifacts.memory.htg import Memory
from artifacts.outcome import Outcome
from artifacts.state import State
from optimizer.arms import Arm, Choice
from optimizer.arms.intents import Intent
from optimizer.llm.prompt import Advice, Attempt, Fix, Situation
from optimizer.search.cargo import Cargo
from optimizer.search.population import Node, Population
from optimizer.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and in what language candidates are to be fast."""

    arch: str
    language: Language


def state_of(task: Task, target: Target, population: Population, parent: Node | None, index: int) -> State:
    """State before step ``index`` from ``parent``; None is the reference."""
    lineage = population.lineage(parent)
    timing = None if parent is None else parent.measurement.timing
    profile = None if parent is None else parent.measurement.profile
    fraction = None if profile is None or profile.fraction_of_bound is None else min(profile.fraction_of_bound, 1.0)
    correct = [node for node in lineage if node.correct]
    score = population.score(correct[-1]) if correct and parent is not None and parent.correct else None
    return State(
        family=task.ref.family,
        arch=target.arch,
        language=target.language,
        dtype=task.dtype,
        size=task.size,
        bottleneck=Bottleneck.UNKNOWN if profile is None else profile.bottleneck,
        fraction_of_bound=fraction,
        log2_speedup=score,
        log2_progress=0.0 if score is None else score - population.score(correct[0]),
        runtime_us=None if timing is None else timing.median_us,
        last_outcome=_last_outcome(population, parent),
        step=index,
        stagnation=0 if parent is None or not parent.correct else population.fruitless(parent),
        features=frozenset() if parent is None else parent.features,
        history=tuple(node.direction for node in lineage if node.direction),
    )


def _last_outcome(population: Population, parent: Node | None) -> Outcome | None:
    tries = population.children(parent) or ([] if parent is None else [parent])
    return tries[-1].measurement.outcome if tries else None


def situation_of(
    task: Task,
    population: Population,
    parent: Node | None,
    choice: Choice,
    arm: Arm,
    fixes: tuple[Fix, ...],
    slot: str,
    sample: int,
    cargo: Cargo | None,
    intents: tuple[Intent, ...] = (),
) -> Situation:
    """Everything the prompt may say at ``slot`` (``<step>.<candidate>``); ``sample`` numbers the run's slots."""
    memory = arm.memory
    shown = () if arm.restarts else tuple(node for node in population.nodes if node is not parent)
    return Situation(
        task_id=task.ref.task_id,
        task_source=task.source,
        slot=slot,
        sample=sample,
        parent_source="" if parent is None else parent.source,
        measurement=None if parent is None else parent.measurement,
        intent="" if parent is None else parent.plan,
        direction=memory.direction(choice.direction) if memory is not None and choice.direction else None,
        strategies=tuple(
            Advice(
                strategy=cargo.fitting(memory.strategy(use.strategy_id), task.ref.family),
                mean=use.mean,
                spread=use.spread,
                effective_n=use.effective_n,
            )
            for use in choice.strategies
            if memory is not None and cargo is not None
        ),
        tried=tuple(_attempt(population, node, memory) for node in shown),
        fixes=fixes,
        planning=arm.plans,
        intents=tuple(_intent(intent) for intent in intents),
        intent_now="" if choice.intent is None else f"{choice.intent.number}. {choice.intent.text}",
    )


def _intent(intent: Intent) -> str:
    """One intent of the model's list, with what became of it."""
    rating = f"priority {intent.priority:g}, difficulty {intent.difficulty}"
    fate = f"closed: {intent.closed}" if intent.closed else "open"
    return f"{intent.number}. [{fate}; {rating}; {intent.tries} tries, {intent.fruitless} in vain] {intent.text}"


def _attempt(population: Population, node: Node, memory: Memory | None) -> Attempt:
    named = memory is not None and bool(node.direction)
    return Attempt(
        plan=node.plan,
        outcome=node.measurement.outcome,
        gain=population.gain(node),
        direction=memory.direction(node.direction).name if memory is not None and named else "",
        error=node.measurement.error,
    )
