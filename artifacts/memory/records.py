"""Rows of a memory artifact: directions, strategies, transitions."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.measurement import Outcome
from artifacts.statistics import LEAST_TASKS
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State, TrustFlag

LONGEST_KERNEL = 32_000
"""Characters of a source that is kept for others to adapt; of 220 candidates of H200 runs the longest has 25,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What steps gained, in log2(parent time / child time): mean over tasks with its 95 % interval.

    Means are shrunken towards no effect. Below :data:`artifacts.statistics.LEAST_TASKS` tasks (operators, whatever
    their ids) they and their bounds are what is assumed of any effect, and are not to be shown.

    Attributes:
        n, tasks: measured transitions of sources that record what lost as well, and the tasks they are of.
        failures: transitions whose child was not correct.
    """

    mean: float
    low: float
    high: float
    n: int
    tasks: int
    failures: int

    @property
    def known(self) -> bool:
        """Whether enough tasks tell of it that it may be shown."""
        return self.tasks >= LEAST_TASKS

    @property
    def sign(self) -> int:
        """1 where the whole interval lies above no effect, -1 where it lies below, else 0."""
        return 0 if not self.known or self.low <= 0.0 <= self.high else 1 if self.mean > 0 else -1


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
class Edge:
    """What one move did where it was made, over all steps that made it from one rung (edge of the HTG).

    Attributes:
        move: ``+technique`` gained or ``-technique`` given up, see :mod:`artifacts.features.techniques`.
        rung: of the move's ladder, where the parent stood; ``plain`` below all rungs.
        arch, bound, family: device architecture, bottleneck and operator family; empty for any.
        attempts, operators, sources: steps that made the move, and what they are of.
        devices: names of the devices.
        failures: outcomes of the failed ones with their number, the most frequent first.
        cures: what mended a failed one, in the words of the step that did.
        excerpt: the code difference of the step that gained most, where it may be shown.
    """

    move: str
    rung: str
    arch: str
    bound: str
    family: str
    effect: Effect
    attempts: int
    operators: int
    sources: int
    devices: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    excerpt: Excerpt | None = None


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
        expected: reward that the state predicts, whatever the direction (cross-fitted by task); None when unknown.
        weight: trust in 0..1.
        repair: its parent had failed: evidence for cures, and of no strategy whatever its plan says.
        siblings: id shared by all children of one parent code of a task, on one device and in one source.
        plan: strategy text after checking it against the code difference.
        error: typed reason or first line of the failure.
        kernel: source of the child when it is the fastest verified one of its task, for others to adapt; else empty.
            At most :data:`LONGEST_KERNEL` characters, and so is ``reference``.
        techniques: of the parent; ``moves``: what the step gained and gave up, see :class:`Edge`.
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
    repair: bool = False
    techniques: frozenset[str] = frozenset()
    moves: tuple[str, ...] = ()
