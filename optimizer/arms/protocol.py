"""The interface between the search and its ways of choosing the next step."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.measurement import Measurement
from artifacts.memory.attention import DirectionScore, StrategyScore
from artifacts.memory.htg import Memory
from artifacts.memory.records import Edge, Transition
from artifacts.trajectory import State

EXPERIENCE, KERNEL, MOVES, STRATEGIES, FIXES = "device experience", "reference kernel", "moves", "strategies", "fixes"
PARTS = frozenset({EXPERIENCE, KERNEL, MOVES, STRATEGIES, FIXES})
"""What a prompt can show of a memory beside the names of directions; fixes are for repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One idea, and the programs that came of it.

    Attributes:
        number: by which edits name it, from 1.
        priority: what the model expects of it, 0..1; ``difficulty``: 1 (easy) to 5.
        under: number of the intent whose program it builds on; None for one that starts from the search's own parent.
        low, high: times as fast as what it starts from, at least and at best, as the model predicts; None unless asked.
        base: step that it says it starts from; empty when it says none.
        program: step of the latest candidate that implements it and gained; empty while there is none.
        gain: largest log2 gain that was measured of it; None while nothing correct was.
        tries, fruitless: implementations so far, and those since the last that was faster.
        closed: why it is not worked on any more; empty while it is open.
    """

    number: int
    text: str
    priority: float = 0.5
    difficulty: int = 3
    under: int | None = None
    low: float | None = None
    high: float | None = None
    base: str = ""
    program: str = ""
    gain: float | None = None
    tries: int = 0
    fruitless: int = 0
    closed: str = ""

    def __post_init__(self) -> None:
        if self.number < 1 or not self.text:
            raise ValueError("an intent has a number from 1 and a text")
        if not 0 <= self.priority <= 1 or not 1 <= self.difficulty <= 5:
            raise ValueError(f"priority lies in 0..1 and difficulty in 1..5, got {self.priority} and {self.difficulty}")

    @property
    def label(self) -> str:
        """By which siblings of a step know that it is taken."""
        return f"intent {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One measured candidate of the task, as arms see it.

    Attributes:
        score: log2 speedup over the reference; None when it is not correct.
        gain: log2 of incumbent time over own time; None when either was not timed.
        fruitless: tries to improve it in a row that did not.
        alive: whether it may be started from by the search's own rules.
        direction: that it followed; ``features``: techniques in its code.
    """

    step_id: str
    parent_id: str | None
    score: float | None
    gain: float | None
    fruitless: int
    alive: bool
    direction: str
    features: frozenset[str]
    plan: str
    measurement: Measurement

    @property
    def metric(self) -> Mapping[str, float]:
        """Hardware counters by name; empty where none were read."""
        return {} if self.measurement.profile is None else self.measurement.profile.metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer to one question of a chain."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmContext:
    """What an arm may look at.

    Attributes:
        mode: ``first``, ``repair`` or ``optimize``.
        parent: step that the candidate starts from, or would by the search's own rules; empty for the reference.
        members: candidates of the task so far, oldest first.
        overlay: transitions of this run that came before the step.
        seed: names the step; an arm that draws does so from this alone.
        taken: labels of what siblings of the same step follow already, see :attr:`Choice.label`, and of what was tried
            from this parent often enough.
        intents: the task's list of ideas, for arms that keep one.
        said: answers to the questions that this step has asked so far.
    """

    state: State
    mode: str = "optimize"
    parent: str = ""
    members: tuple[Member, ...] = ()
    overlay: Sequence[Transition] = ()
    seed: str = ""
    taken: frozenset[str] = frozenset()
    intents: tuple[Intent, ...] = ()
    said: tuple[Said, ...] = ()

    def member(self, step_id: str) -> Member | None:
        """The candidate of a step; None for the reference and for what is not there."""
        return next((member for member in self.members if member.step_id == step_id), None)

    def has_said(self, role: str) -> bool:
        """Whether ``role`` was asked in this step."""
        return any(said.role == role for said in self.said)

    def draw(self, what: str) -> random.Random:
        """A generator that depends on the seed and on ``what`` is drawn alone."""
        return random.Random(hashlib.sha256(f"{self.seed}/{what}".encode()).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyUse:
    """A strategy offered in a prompt, with what was expected of it in log2."""

    strategy_id: str
    name: str
    mean: float
    spread: float
    effective_n: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an arm chose and why; logged whole.

    Attributes:
        direction: id, empty when the model is given none or follows an intent of its own.
        move: the one that the model is told to make, ``+technique``; empty for arms that order none.
        moves: edges whose moves surely gained from this kernel's rung, best first.
        probability: with which direction, move or intent was chosen; None when nothing was chosen.
        gate: why memory was not used; empty when it was, or when the arm has none.
        scores: every direction with its evidence, in the order of the memory.
        expected: log2 gain of any step by the no-direction baseline; None for arms that do not ask.
        intent: what the model is to implement of its own list; None for arms that keep none.
        asked: roles of the questions that were asked before, in their order; the log holds the answers.
        instructions: what these answers, or the move, tell whoever writes the candidate.
    """

    arm: str
    direction: str = ""
    move: str = ""
    strategies: tuple[StrategyUse, ...] = ()
    moves: tuple[Edge, ...] = ()
    probability: float | None = None
    explored: bool = False
    gate: str = ""
    scores: tuple[DirectionScore, ...] = ()
    expected: float | None = None
    intent: Intent | None = None
    asked: tuple[str, ...] = ()
    instructions: str = ""

    @property
    def label(self) -> str:
        """What siblings should not take as well: direction, move or intent; empty for none."""
        return self.direction or self.move if self.intent is None else self.intent.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(ABC):
    """One way to choose the next step; implementations are pure: equal contexts give equal results.

    A step may ask a short chain of questions before its candidate is written: :meth:`question` names the next, its
    prompt is ``optimizer/prompting/templates/role_<role>.j2``, and the answer comes back in ``context.said``. Each is a
    logged call like any other, counted against the budget and never asked twice.

    Attributes:
        name: as in ``--arm`` and in the log.
        memory: where the directions and strategies of its choices are looked up; None for none.
        restarts: every step starts from the reference instead of a parent.
        shows: parts of the memory (:data:`PARTS`) that its prompts show.
        reviews: roles that judge each candidate before it is measured; ``role_<role>.j2`` asks for a verdict.
    """

    name: str
    memory: Memory | None = None
    restarts: bool = False
    shows: frozenset[str] = frozenset()
    reviews: tuple[str, ...] = ()

    @abstractmethod
    def choose(self, context: ArmContext) -> Choice:
        """Choose what one candidate tries."""

    def start(self, context: ArmContext) -> str:
        """Step of the correct candidate to start from; the search's own choice unless an arm knows better.

        Asked again after each answer; not for repairs, and not while there is no correct candidate.
        """
        return context.parent

    def question(self, context: ArmContext) -> str:
        """Role to ask next, each at most once a step; empty when the step knows enough."""
        return ""

    def heard(self, intents: tuple[Intent, ...], said: Said) -> tuple[Intent, ...]:
        """The task's list of ideas after an answer."""
        return intents

    def told(self, said: Sequence[Said]) -> str:
        """What the answers of a chain tell whoever writes the candidate."""
        return said[-1].text if said else ""


def uses(scores: Sequence[StrategyScore]) -> tuple[StrategyUse, ...]:
    """The loggable part of strategy scores."""
    return tuple(
        StrategyUse(
            strategy_id=score.strategy.strategy_id,
            name=score.strategy.name,
            mean=score.mean,
            spread=score.spread,
            effective_n=score.effective_n,
        )
        for score in scores
    )
