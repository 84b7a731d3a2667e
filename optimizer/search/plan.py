"""Records of the loop: settings of a run, a planned candidate, what became of it, and its place in the population."""

from __future__ import annotations

from dataclasses import dataclass, field

from artifacts.candidate import Candidate
from artifacts.features import code_features
from artifacts.measurement import Measurement
from artifacts.state import State
from optimizer.arms import Choice
from optimizer.arms.intents import IntentEdit
from optimizer.evaluation.job import EvaluationSettings
from optimizer.llm.prompt import PromptSettings
from optimizer.search.population import Node
from optimizer.search.settings import SearchSettings
from optimizer.search.situation import Target
from optimizer.tuning.search import TuningSettings


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
class Plan:
    """Payload of a ``choice`` event: where a candidate starts from, what is known there, and what was chosen."""

    mode: str
    parent_id: str | None
    state: State
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """What became of one planned candidate; ``measurement`` is None when the answers held no new code."""

    plan: Plan
    slot: str
    source: str = ""
    sha256: str = ""
    words: str = ""
    strategies: tuple[str, ...] = ()
    model: str = ""
    measurement: Measurement | None = None
    error: str = ""
    edits: tuple[IntentEdit, ...] = ()

    @property
    def improved(self) -> bool:
        """Whether it is correct and not called slower than what it was timed against."""
        measured = self.measurement
        return measured is not None and measured.timing is not None and measured.faster_than_incumbent is not False


def node_of(attempted: Attempted, index: int, measurement: Measurement, incumbent: Node | None) -> Node:
    """An attempt that was measured, as a candidate of the population."""
    source = Candidate(attempted.source).source
    return Node(
        step_id=attempted.slot,
        parent_id=attempted.plan.parent_id,
        index=index,
        mode=attempted.plan.mode,
        source=source,
        sha256=attempted.sha256,
        plan=attempted.words,
        direction=attempted.plan.choice.direction,
        intent=attempted.plan.choice.intent,
        strategies=attempted.strategies,
        measurement=measurement,
        incumbent_id=None if incumbent is None else incumbent.step_id,
        features=code_features(source).names,
    )
