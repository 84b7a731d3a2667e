"""Trajectories as every importer delivers them, and the state before each of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from artifacts.candidate import Language, source_hash
from artifacts.measurement import Bottleneck, Outcome
from artifacts.task import FAMILIES, TaskRef

SHORTEST_US, LONGEST_US = 0.1, 3.6e9
"""Times outside are none that a device took for a forward pass: less than an instruction's way through memory, more
than an hour."""
LARGEST_RATIO = 2.0**20
"""Of two times of one operator; beyond it one of the two is no measurement."""
LARGEST_LOG2 = 64.0
"""Of what a state says of speeds: far beyond any search, and no number to overflow anything."""
MOST_STEPS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The situation before a step, for recorded transitions and for live selection alike.

    Attributes:
        family: operator family of the task.
        arch: device architecture, e.g. ``sm_90`` or ``cpu``.
        language: language of the parent candidate (of the wanted candidate before the first step).
        dtype: main input dtype, ``unknown`` when the log does not say.
        size: shape regime ``tiny|small|medium|large|unknown`` from the bytes a forward pass must move.
        bottleneck: of the parent, from its profile.
        fraction_of_bound: speed-of-light time over parent time, 0..1; None when unknown.
        log2_speedup: log2(eager time / parent time); None when unknown.
        log2_progress: log2(first correct time of the lineage / parent time).
        runtime_us: parent time in microseconds; None when the parent is not correct.
        last_outcome: outcome of the last step tried from this lineage; None before the first.
        step: zero-based index of the coming step.
        stagnation: steps since the lineage last got faster.
        features: names of code features found in the parent (see ``artifacts.features``).
        history: direction ids taken on the lineage, oldest first.
    """

    family: str
    arch: str
    language: Language
    dtype: str = "unknown"
    size: str = "unknown"
    bottleneck: Bottleneck = Bottleneck.UNKNOWN
    fraction_of_bound: float | None = None
    log2_speedup: float | None = None
    log2_progress: float = 0.0
    runtime_us: float | None = None
    last_outcome: Outcome | None = None
    step: int = 0
    stagnation: int = 0
    features: frozenset[str] = frozenset()
    history: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"unknown operator family {self.family!r}")
        if self.size not in ("tiny", "small", "medium", "large", "unknown"):
            raise ValueError(f"unknown size regime {self.size!r}")
        if not 0 <= self.step < MOST_STEPS or not 0 <= self.stagnation < MOST_STEPS:
            raise ValueError(f"step and stagnation count from 0, got {self.step} and {self.stagnation}")
        for name in ("log2_speedup", "log2_progress"):
            value = getattr(self, name)
            if value is not None and not abs(value) <= LARGEST_LOG2:
                raise ValueError(f"{name} is {value:g}, beyond {LARGEST_LOG2:g} either way")
        if self.runtime_us is not None and not SHORTEST_US <= self.runtime_us <= LONGEST_US:
            raise ValueError(f"runtime_us is {self.runtime_us:g}: below {SHORTEST_US} us or above an hour")
        if self.fraction_of_bound is not None and not 0.0 <= self.fraction_of_bound <= 1.0:
            raise ValueError(f"fraction_of_bound is {self.fraction_of_bound:g}, not in 0..1")


class TrustFlag(StrEnum):
    """Why a record deserves less belief; found by code, never by file name."""

    HACK_PATTERN = "hack_pattern"
    TORCH_ONLY = "torch_only"
    NO_CODE = "no_code"
    DUPLICATED = "duplicated"
    BASELINE_CHANGED = "baseline_changed"
    PLAN_NOT_FOLLOWED = "plan_not_followed"
    ONE_SEED = "one_seed"
    WEAK_BASELINE = "weak_baseline"
    RATIO_ONLY = "ratio_only"
    RECONSTRUCTED = "reconstructed"
    PRECISION_DROPPED = "precision_dropped"
    UNSTEADY = "unsteady"
    ROUGH = "rough"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a record was read: format and importer version, file (relative), its SHA-256, 1-based line."""

    format: str
    importer_version: int
    file: str
    file_sha256: str
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One candidate of a trajectory with what was measured of it.

    Attributes:
        step_id: unique within the trajectory; ``parent_id`` is another step's id or None for a root.
        plan: what the log says the step meant to do; empty when it says nothing.
        runtime_us: time in microseconds; only for correct steps, None when not timed.
        baseline_us: reference time of the same harness in microseconds.
        ratio_to_parent: parent time / own time where the log has it: the two timed side by side, or a log of ratios.
        profile: raw profiler metrics by their name in the log.
        direction, state, choice_probability: what an HTAM run logged of its own choice.
    """

    step_id: str
    parent_id: str | None
    index: int
    code: str
    language: Language
    outcome: Outcome
    provenance: Provenance
    plan: str = ""
    error: str = ""
    runtime_us: float | None = None
    baseline_us: float | None = None
    ratio_to_parent: float | None = None
    statistic: str = "unknown"
    profile: Mapping[str, float] = field(default_factory=dict)
    flags: frozenset[TrustFlag] = frozenset()
    direction: str = ""
    state: State | None = None
    choice_probability: float | None = None

    def __post_init__(self) -> None:
        for name in ("runtime_us", "baseline_us"):
            value = getattr(self, name)
            if value is not None and not SHORTEST_US <= value <= LONGEST_US:
                raise ValueError(f"{name} is {value:g}, no measurement: below {SHORTEST_US} us or above an hour")
        ratio = self.ratio_to_parent
        if ratio is not None and not 1.0 / LARGEST_RATIO <= ratio <= LARGEST_RATIO:
            raise ValueError(f"ratio_to_parent is {ratio:g}, no measurement: beyond 2^20 either way")
        if self.choice_probability is not None and not 0.0 < self.choice_probability <= 1.0:
            raise ValueError(f"choice_probability is {self.choice_probability:g}, not in 0..1")
        if self.runtime_us is not None and self.outcome is not Outcome.CORRECT:
            raise ValueError(f"step {self.step_id} is {self.outcome.value} and must not carry a run time")
        if self.parent_id == self.step_id:
            raise ValueError(f"step {self.step_id} is its own parent")

    @property
    def sha256(self) -> str:
        """Identity of the step's candidate."""
        return source_hash(self.code)


def time_ratio(parent: Step, child: Step) -> float | None:
    """Parent time / child time; None unless both are correct and comparable.

    A ratio that the log gives goes first: where both were timed side by side, what else ran on the machine
    is in both, which a quotient of times from two moments cannot promise.
    """
    if child.outcome is not Outcome.CORRECT or parent.outcome is not Outcome.CORRECT:
        return None
    if child.ratio_to_parent is not None:
        return child.ratio_to_parent
    if parent.runtime_us is None or child.runtime_us is None:
        return None
    return parent.runtime_us / child.runtime_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The tree of steps of one run on one task.

    Attributes:
        source: name of the log collection, e.g. ``ssnti1111`` or a run id; unit of ``exclude_sources``.
        device: as the log names it; ``llm`` likewise, empty when unknown.
        steps: parents before children.
        reference: source of the task's reference where the log holds it; shapes and dtype are read from it.
    """

    trajectory_id: str
    source: str
    task: TaskRef
    device: str
    llm: str
    steps: tuple[Step, ...]
    reference: str = ""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for step in self.steps:
            if step.step_id in seen:
                raise ValueError(f"trajectory {self.trajectory_id}: step {step.step_id} occurs twice")
            if step.parent_id is not None and step.parent_id not in seen:
                raise ValueError(f"trajectory {self.trajectory_id}: step {step.step_id} precedes its parent")
            seen.add(step.step_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A record that could not be read: file (relative), 1-based line or record number, and the reason."""

    file: str
    line: int | None
    reason: str
