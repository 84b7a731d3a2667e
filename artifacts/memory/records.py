"""Rows of a memory artifact: directions, strategies, transitions."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.outcome import Outcome
from artifacts.state import State
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, TrustFlag

LONGEST_KERNEL = 32_000
"""Characters of a source that is kept for others to adapt; of 220 candidates of H200 runs the longest has 25,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Distribution of an effect in log2(parent time / child time): mean with 95 % interval.

    ``n`` counts measured transitions, ``effective_n`` their trust-weighted number,
    ``failures`` the transitions whose child was not correct.
    """

    mean: float
    low: float
    high: float
    n: int
    effective_n: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A predicate on :class:`State`, with the words that say it.

    ``field`` names a state attribute or ``feature:<name>``; ``op`` is one of
    ``== != < >= has lacks``; ``value`` is compared as text or number.
    """

    field: str
    op: str
    value: str | float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A coarse goal that groups strategies (global node of the HTG).

    ``resource`` names what the direction relieves (``memory``, ``compute``, ``latency``, ``launch``),
    for the saturation mask; empty when it relieves none in particular.
    """

    direction_id: str
    name: str
    description: str
    effect: Effect
    resource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A piece of text or code taken from one transition, so that a filter can drop it with its source.

    ``gain`` is the log2 gain of that transition; 0 when it was not measured.
    """

    text: str
    transition_id: str
    gain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A local, concrete way to change code (local node of the HTG).

    Attributes:
        when: conditions learned from where it helped and where it hurt.
        recipe: what to do, in sentences; ``template``: code to adapt, empty when none is known.
        risks: "you cannot ..." rules from failures; ``risk_evidence`` holds the transition ids behind each.
        evidence: the most telling transition ids, at most 50; ``Memory.rows_of`` finds all of them.
        recipes, templates: the texts to choose ``recipe`` and ``template`` from, best first.
    """

    strategy_id: str
    direction_id: str
    name: str
    intent: str
    when: tuple[Condition, ...]
    recipe: str
    template: str
    effect: Effect
    risks: tuple[str, ...]
    evidence: tuple[str, ...]
    risk_evidence: tuple[tuple[str, ...], ...] = ()
    recipes: tuple[Excerpt, ...] = ()
    templates: tuple[Excerpt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One recorded (state, action, result); ``reward`` is log2(parent time / child time).

    Attributes:
        reward: None when the child is not correct or either end was not timed.
        expected: reward that the state alone predicts (cross-fitted by task); None when unknown.
        weight: trust in 0..1.
        siblings: id shared by all children of one parent code of a task, on one device and in one source.
        plan: strategy text after checking it against the code difference.
        error: typed reason or first line of the failure.
        kernel: source of the child when it is the fastest verified one of its task, for others to adapt; else empty.
            At most :data:`LONGEST_KERNEL` characters, and so is ``reference``.
        reference: source of the task that ``kernel`` computes; empty without a kernel, and where the log lacks it.
    """

    transition_id: str
    source: str
    trajectory_id: str
    task: TaskRef
    device: str
    llm: str
    state: State
    direction_id: str
    strategy_id: str
    plan: str
    outcome: Outcome
    reward: float | None
    expected: float | None
    weight: float
    flags: frozenset[TrustFlag]
    siblings: str
    parent_sha256: str
    child_sha256: str
    parent_us: float | None
    child_us: float | None
    error: str
    choice_probability: float | None
    provenance: Provenance
    kernel: str = ""
    reference: str = ""
