"""One task while it is searched: what it is searched with, what became known, and what passes from part to part.

:mod:`optimizer.search.loop` takes the steps: propose → write → measure → learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from artifacts.measurement import Measurement
from artifacts.memory.records import Transition
from artifacts.trajectory import State
from optimizer.arms import Arm, Choice, Intent
from optimizer.evaluation.job import EvaluationSettings
from optimizer.prompting.context import PromptContexts, Target
from optimizer.prompting.request import PromptSettings
from optimizer.search.effects import EffectLog, Effects
from optimizer.search.population import Node, Population
from optimizer.search.settings import SearchSettings
from optimizer.tasks import Task
from optimizer.tuning import TuningSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What is the same for all tasks of a run.

    Attributes:
        run: name of the run, source of its overlay transitions.
        seed: secret from which choices and the evaluator's hidden seeds are derived.
        tuning: how far declared constants of each winner are searched; None for not at all.
    """

    run: str
    seed: int
    backend: str
    target: Target
    search: SearchSettings
    prompt: PromptSettings
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    tuning: TuningSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Payload of a ``choice`` event: where a candidate starts from, what is known there, and what the arm chose.

    Attributes:
        slot: ``<step>.<candidate>``.
        mode: ``first``, ``repair``, ``optimize`` or ``tune``.
        incumbent_id: step of the candidate that it is to be timed against, None for none.
    """

    slot: str
    mode: str
    parent_id: str | None
    incumbent_id: str | None
    state: State
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one proposal; ``measurement`` is None when the answers held no new code.

    Attributes:
        shown: part of the prompt → ids of what stood in it.
        words: what the author says it does; ``strategies``: of those offered, the ones it says it used.
        error: why there is no candidate.
    """

    proposal: Proposal
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""
    sha256: str = ""
    words: str = ""
    strategies: tuple[str, ...] = ()
    model: str = ""
    measurement: Measurement | None = None
    error: str = ""

    @property
    def improved(self) -> bool:
        """Whether it is correct and not called slower than what it was timed against."""
        measured = self.measurement
        return measured is not None and measured.timing is not None and measured.faster_than_incumbent is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What measuring the winner of a task again gave.

    Attributes:
        measurement: of the winner, None when nothing could be confirmed.
        refuted: step id of candidates that failed the second time, with the reason.
    """

    measurement: Measurement | None = None
    refuted: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class TaskSearch:
    """One task of a run.

    Attributes:
        learnt: transitions of each step so far, for the overlay.
        intents: the task's list of ideas, for arms that keep one.
        unusable: why the reference cannot be evaluated; nothing is asked for such a task.
    """

    task: Task
    arm: Arm
    run: RunSettings
    effects: Effects
    contexts: PromptContexts
    population: Population
    learnt: list[list[Transition]] = field(default_factory=list)
    intents: tuple[Intent, ...] = ()
    confirmation: Confirmation = field(default_factory=Confirmation)
    unusable: str = ""

    @property
    def task_id(self) -> str:
        """Id of the task."""
        return self.task.ref.task_id

    @property
    def steps_done(self) -> int:
        """Steps that are complete."""
        return len(self.learnt)

    @property
    def fruitless(self) -> int:
        """Steps since the one that gave the best candidate; 0 as long as there is no correct one."""
        best = self.population.best
        return 0 if best is None else self.steps_done - 1 - best.index

    @property
    def overlay(self) -> list[Transition]:
        """Transitions of the steps so far."""
        return [transition for step in self.learnt for transition in step]

    @property
    def log(self) -> EffectLog:
        """Where the steps of the run are kept."""
        return self.effects.log

    def key(self, place: str) -> str:
        """Effect key of a place in the search of this task."""
        return f"{self.task_id}/{place}"

    def node(self, step_id: str | None) -> Node | None:
        """Candidate of a step; None for the reference."""
        return None if step_id is None else self.population.node(step_id)
