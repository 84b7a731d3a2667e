"""What the prompt of a step may say: the task, its past, and what the arm's memory has to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from artifacts.candidate import Language
from artifacts.measurement import Measurement, Outcome
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.arms import EXPERIENCE, FIXES, KERNEL, Arm, Choice
from optimizer.prompting.device_experience import DeviceExperience, evidence
from optimizer.prompting.fixes import KnownFixes
from optimizer.prompting.reference_kernels import ReferenceKernels
from optimizer.prompting.request import Advice, PromptContext, Tried
from optimizer.prompting.strategies import StrategyTexts
from optimizer.tasks import Task
from optimizer.tasks.source import shown_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and in what language candidates are to be fast."""

    arch: str
    language: Language


@dataclass(frozen=True, slots=True)
class Parent:
    """The candidate that a step starts from; ``plan`` is what its author says it does."""

    source: str
    plan: str
    measurement: Measurement


class PromptContexts:
    """Puts together what prompts may say; one serves all tasks of a run."""

    def __init__(self, arm: Arm, target: Target) -> None:
        self._memory = None if arm.memory is None else _MemoryParts(arm.memory, target, arm.shows)

    def of_step(
        self,
        task: Task,
        state: State,
        choice: Choice,
        *,
        slot: str,
        sample: int,
        parent: Parent | None = None,
        tried: Sequence[Tried] = (),
    ) -> PromptContext:
        """Everything the prompt may say.

        Args:
            slot: ``<step>.<candidate>``; ``sample`` numbers the run's slots.
            tried: earlier steps of the task, with the ids of their directions.
        """
        now = choice.intent
        context = PromptContext(
            task_id=task.ref.task_id,
            task_source=shown_source(task.source),
            slot=slot,
            sample=sample,
            parent_source="" if parent is None else parent.source,
            measurement=None if parent is None else parent.measurement,
            intent="" if parent is None else parent.plan,
            tried=tuple(tried),
            intent_now="" if now is None else f"{now.number}. {now.text}",
            instructions=choice.instructions,
        )
        if self._memory is None:
            return context
        if parent is not None and parent.measurement.outcome is not Outcome.CORRECT:
            return self._memory.add_to_repair(context, parent.measurement)
        return self._memory.add(context, task, state, choice)


class _MemoryParts:
    """What a memory adds to prompts, as far as the arm ``shows`` it."""

    def __init__(self, memory: Memory, target: Target, shows: frozenset[str]) -> None:
        self._memory = memory
        self._shows = shows
        self._texts = StrategyTexts(memory, target.language)
        self._experience = DeviceExperience(memory, self._texts, target.arch, target.language.value)
        self._kernels = ReferenceKernels(memory, target.arch, target.language.value)
        self._fixes = KnownFixes(memory)

    def add_to_repair(self, context: PromptContext, failure: Measurement) -> PromptContext:
        """A repair keeps its own code and intent, so it is shown earlier fixes and nothing else."""
        fixes = self._fixes.like(failure.outcome, failure.error) if FIXES in self._shows else ()
        return replace(context, fixes=fixes, tried=self._named(context.tried))

    def add(self, context: PromptContext, task: Task, state: State, choice: Choice) -> PromptContext:
        """Direction and strategies where one was chosen, otherwise what is known of the device, or else elsewhere."""
        undirected = EXPERIENCE in self._shows and not choice.direction
        known = evidence(self._experience, state) if undirected else None
        return replace(
            context,
            direction=self._memory.direction(choice.direction) if choice.direction else None,
            strategies=self._strategies(choice, task.ref.family),
            moves=choice.moves,
            device_experience=known,
            reference_kernel=self._kernels.nearest(task, state) if KERNEL in self._shows else None,
            elsewhere=self._texts.recipes_elsewhere(state) if undirected and known is None else (),
            tried=self._named(context.tried),
        )

    def _strategies(self, choice: Choice, family: str) -> tuple[Advice, ...]:
        return tuple(
            Advice(
                strategy=self._texts.fitting(self._memory.strategy(use.strategy_id), family),
                margin=use.mean - (choice.expected or 0.0),
                spread=use.spread,
                effective_n=use.effective_n,
            )
            for use in choice.strategies
        )

    def _named(self, tried: Sequence[Tried]) -> tuple[Tried, ...]:
        """``tried`` with the names of directions in place of their ids."""
        names = {one.direction_id: one.name for one in self._memory.directions}
        return tuple(replace(attempt, direction=names.get(attempt.direction, "")) for attempt in tried)
