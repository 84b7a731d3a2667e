"""From trajectories to described steps: the state before each, its code difference, strategy text and error class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from artifacts.candidate import Language
from artifacts.device import DeviceSpec, device_spec
from artifacts.features import FEATURES, code_features, detect_language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.task import TaskRef
from artifacts.task_bytes import task_bytes
from artifacts.trajectory import LARGEST_LOG2, State, Step, Trajectory, TrustFlag, time_ratio
from builder.describe.difference import difference, followed, written
from builder.describe.evidence import bottleneck, error_class, fraction_of_bound, size_regime
from builder.describe.plan import intent


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A step's place, as it was before the step was made.

    Attributes:
        tries: steps already tried on the lineage.
        stagnation: tries since the lineage last got faster.
        last_outcome: of the last try on the lineage; None before the first.
        log2_progress: log2(first correct time of the lineage / parent time).
        log2_speedup: log2(baseline / parent time); None when unknown.
    """

    tries: int
    stagnation: int
    last_outcome: Outcome | None
    log2_progress: float
    log2_speedup: float | None


@dataclass(slots=True)
class _Node:
    """What later steps ask of a step already seen; ``pace`` is log2(first correct time / own time)."""

    step: Step
    tries: int
    stagnation: int
    pace: float | None
    children: int = 0
    last_child: Outcome | None = None
    speedup: float | None = None


def places(trajectory: Trajectory) -> tuple[Place, ...]:
    """One place a step, in the order of the steps; linear in their number."""
    nodes: dict[str, _Node] = {}
    result: list[Place] = []
    for step in trajectory.steps:
        parent = nodes.get(step.parent_id) if step.parent_id is not None else None
        result.append(_before(parent))
        nodes[step.step_id] = _enter(step, parent)
        if parent is not None:
            parent.children += 1
            parent.last_child = step.outcome
    return tuple(result)


def _before(parent: _Node | None) -> Place:
    if parent is None:
        return Place(tries=0, stagnation=0, last_outcome=None, log2_progress=0.0, log2_speedup=None)
    return Place(
        tries=parent.tries + parent.children,
        stagnation=parent.stagnation + parent.children,
        last_outcome=parent.last_child or parent.step.outcome,
        log2_progress=parent.pace or 0.0,
        log2_speedup=parent.speedup,
    )


def _enter(step: Step, parent: _Node | None) -> _Node:
    gain = gain_over(parent.step, step) if parent is not None else None
    pace = _pace(step, parent, gain)
    faster = gain is not None and gain > 0
    return _Node(
        step=step,
        tries=0 if parent is None else parent.tries + parent.children + 1,
        stagnation=0 if parent is None or faster else parent.stagnation + parent.children + 1,
        pace=pace,
        speedup=_speedup(step, parent, gain),
    )


def gain_over(parent: Step, child: Step) -> float | None:
    """log2(parent time / child time); None when not measured."""
    ratio = time_ratio(parent, child)
    return None if ratio is None else math.log2(ratio)


def _pace(step: Step, parent: _Node | None, gain: float | None) -> float | None:
    if step.outcome is not Outcome.CORRECT:
        return parent.pace if parent is not None else None
    if parent is None or parent.pace is None:
        return 0.0
    return parent.pace + gain if gain is not None else parent.pace


def _speedup(step: Step, parent: _Node | None, gain: float | None) -> float | None:
    if step.runtime_us is not None and step.baseline_us is not None:
        return math.log2(step.baseline_us / step.runtime_us)
    if step.outcome is not Outcome.CORRECT:
        return None
    if parent is None:
        # A root in plain torch without a time is the reference itself: logs of ratios start from it.
        return 0.0 if step.language is Language.TORCH and step.runtime_us is None else None
    return parent.speedup + gain if parent.speedup is not None and gain is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedStep:
    """One step with what the rest of the builder needs to know of it.

    Attributes:
        step: the step; carries ``PLAN_NOT_FOLLOWED`` when the code difference denies the plan.
        parent: its parent; None for a root.
        state: the situation before the step; ``history`` is empty here, the linker fills it.
        added, removed: code features that the child has and the parent lacks, and the reverse.
        text: strategy text: the plan's intent where the difference allows it, else written from the difference.
        followed: whether the difference shows what the plan promised; None when that is not known.
        language: of the child.
        error_class: class of a failure (see ``builder.describe.evidence``); empty for a correct step.
    """

    step: Step
    parent: Step | None
    state: State
    added: frozenset[str]
    removed: frozenset[str]
    text: str
    followed: bool | None
    language: Language
    error_class: str = ""

    def __post_init__(self) -> None:
        unknown = sorted((self.added | self.removed) - set(FEATURES))
        if unknown:
            raise ValueError(f"unknown code feature {unknown[0]!r}")
        if self.added & self.removed:
            raise ValueError(f"features both added and removed: {sorted(self.added & self.removed)}")
        if (self.step.outcome is Outcome.CORRECT) != (not self.error_class):
            raise ValueError(f"step {self.step.step_id} is {self.step.outcome.value} with error {self.error_class!r}")
        if not self.text.strip():
            raise ValueError(f"step {self.step.step_id} has no text")


def describe(trajectory: Trajectory) -> tuple[DescribedStep, ...]:
    """Describe every step of ``trajectory``, in its order; roots are compared with nothing."""
    device = device_spec(trajectory.device)
    by_id = {step.step_id: step for step in trajectory.steps}
    size = _size(trajectory, device)
    return tuple(
        _described(step, by_id.get(step.parent_id or ""), place, trajectory.task, device, size)
        for step, place in zip(trajectory.steps, places(trajectory), strict=True)
    )


def _described(
    step: Step, parent: Step | None, place: Place, task: TaskRef, device: DeviceSpec, size: str
) -> DescribedStep:
    change = difference(parent.code if parent else "", step.code)
    plan = intent(step.plan)
    kept = followed(plan, change) if plan and parent is not None else None
    if kept is False:
        step = replace(step, flags=step.flags | {TrustFlag.PLAN_NOT_FOLLOWED})
    language = detect_language(step.code) if step.code.strip() else step.language
    text = plan if plan and kept is not False else written(change, parent.code if parent else "", step.code)
    return DescribedStep(
        step=step,
        parent=parent,
        state=step.state or _state(step, parent, place, task, device, size),
        added=change.added if parent else frozenset(),
        removed=change.removed if parent else frozenset(),
        text=text,
        followed=kept,
        language=language,
        error_class=error_class(step.outcome, step.error),
    )


def _state(step: Step, parent: Step | None, place: Place, task: TaskRef, device: DeviceSpec, size: str) -> State:
    language = step.language if parent is None or not parent.code.strip() else detect_language(parent.code)
    return State(
        family=task.family,
        arch=device.arch,
        language=language,
        dtype=_dtype(task),
        size=size,
        bottleneck=bottleneck(parent.profile) if parent else Bottleneck.UNKNOWN,
        fraction_of_bound=fraction_of_bound(parent.profile) if parent else None,
        log2_speedup=None if place.log2_speedup is None else _bounded(place.log2_speedup),
        log2_progress=_bounded(place.log2_progress),
        runtime_us=parent.runtime_us if parent else None,
        last_outcome=place.last_outcome,
        step=place.tries,
        stagnation=place.stagnation,
        features=code_features(parent.code).names if parent else frozenset(),
    )


def _bounded(log2: float) -> float:
    """A sum over a lineage, however absurd its ratios, as a state may hold it."""
    return min(max(log2, -LARGEST_LOG2), LARGEST_LOG2)


def _dtype(task: TaskRef) -> str:
    for mark, dtype in (("fp8", "fp8"), ("bf16", "bfloat16"), ("fp16", "float16")):
        if mark in task.task_id:
            return dtype
    return "float32" if task.suite.startswith("kernelbench") else "unknown"


def _size(trajectory: Trajectory, device: DeviceSpec) -> str:
    """Shape regime of the task: from the first step whose profile shows it, else from the sizes of its inputs."""
    regimes = (size_regime(step.profile, device) for step in trajectory.steps)
    moved = task_bytes(trajectory.task, trajectory.reference)
    return next((regime for regime in regimes if regime != "unknown"), moved.size if moved else "unknown")
