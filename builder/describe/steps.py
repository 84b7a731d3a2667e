"""From trajectories to described steps: the state before each, its code difference, strategy text and error class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from artifacts.candidate import Language
from artifacts.device import DeviceSpec, device_spec
from artifacts.features import code_features, detect_language
from artifacts.measurement import Outcome
from artifacts.task import TaskRef
from artifacts.task_bytes import task_bytes
from artifacts.trajectory import LARGEST_LOG2, State, Step, Trajectory, TrustFlag, time_ratio
from builder.describe.difference import difference, followed, written
from builder.describe.evidence import bottleneck, error_class, fraction_of_bound, size_regime
from builder.describe.plan import intent


@dataclass(slots=True, kw_only=True)
class _Place:
    """Where a step stands on its lineage, itself included, and what was tried from it so far.

    Attributes:
        tries: steps tried on the lineage up to this one; ``stagnation``: those since it last got faster.
        pace: log2(first correct time of the lineage / own time).
        speedup: log2(baseline / own time); None when unknown.
        last: outcome of the last step tried from here, its own before the first.
    """

    step: Step
    tries: int
    stagnation: int
    pace: float | None
    speedup: float | None
    last: Outcome

    def left_by(self, child: Step) -> None:
        """Count ``child`` as tried from here."""
        self.tries += 1
        self.stagnation += 1
        self.last = child.outcome


def _reached(step: Step, parent: _Place | None) -> _Place:
    """The place of a step whose parent does not count it yet."""
    gain = gain_over(parent.step, step) if parent is not None else None
    faster = gain is not None and gain > 0
    return _Place(
        step=step,
        tries=0 if parent is None else parent.tries + 1,
        stagnation=0 if parent is None or faster else parent.stagnation + 1,
        pace=_pace(step, parent, gain),
        speedup=_speedup(step, parent, gain),
        last=step.outcome,
    )


def gain_over(parent: Step, child: Step) -> float | None:
    """log2(parent time / child time); None when not measured."""
    ratio = time_ratio(parent, child)
    return None if ratio is None else math.log2(ratio)


def _pace(step: Step, parent: _Place | None, gain: float | None) -> float | None:
    if step.outcome is not Outcome.CORRECT:
        return parent.pace if parent is not None else None
    if parent is None or parent.pace is None:
        return 0.0
    return parent.pace + gain if gain is not None else parent.pace


def _speedup(step: Step, parent: _Place | None, gain: float | None) -> float | None:
    if step.runtime_us is not None and step.baseline_us is not None:
        return math.log2(step.baseline_us / step.runtime_us)
    if step.outcome is not Outcome.CORRECT:
        return None
    if parent is None:
        # A root in plain torch without a time is the reference itself: logs of ratios start from it.
        return 0.0 if step.language is Language.TORCH and step.runtime_us is None else None
    return parent.speedup + gain if parent.speedup is not None and gain is not None else None


class DescribedStep(NamedTuple):
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
    error_class: str


def describe(trajectory: Trajectory) -> Iterator[DescribedStep]:
    """Describe every step of ``trajectory``, in its order; roots are compared with nothing."""
    device = device_spec(trajectory.device)
    size = _size(trajectory, device)
    places: dict[str, _Place] = {}
    for step in trajectory.steps:
        parent = places.get(step.parent_id or "")
        yield _described(step, parent, trajectory.task, device, size)
        places[step.step_id] = _reached(step, parent)
        if parent is not None:
            parent.left_by(step)


def _described(step: Step, place: _Place | None, task: TaskRef, device: DeviceSpec, size: str) -> DescribedStep:
    parent = None if place is None else place.step
    before = "" if parent is None else parent.code
    change = difference(before, step.code)
    plan = intent(step.plan)
    kept = followed(plan, change) if plan and parent is not None else None
    if kept is False:
        step = replace(step, flags=step.flags | {TrustFlag.PLAN_NOT_FOLLOWED})
    return DescribedStep(
        step=step,
        parent=parent,
        state=step.state or _state(step, place, task, device, size),
        added=change.added if parent else frozenset(),
        removed=change.removed if parent else frozenset(),
        text=plan if plan and kept is not False else written(change, before, step.code),
        followed=kept,
        language=detect_language(step.code) if step.code.strip() else step.language,
        error_class=error_class(step.outcome, step.error),
    )


def _state(step: Step, place: _Place | None, task: TaskRef, device: DeviceSpec, size: str) -> State:
    first = State(family=task.family, arch=device.arch, language=step.language, dtype=_dtype(task), size=size)
    if place is None:
        return first
    parent = place.step
    return replace(
        first,
        language=detect_language(parent.code) if parent.code.strip() else step.language,
        bottleneck=bottleneck(parent.profile),
        fraction_of_bound=fraction_of_bound(parent.profile),
        log2_speedup=None if place.speedup is None else _bounded(place.speedup),
        log2_progress=_bounded(place.pace or 0.0),
        runtime_us=parent.runtime_us,
        last_outcome=place.last,
        step=place.tries,
        stagnation=place.stagnation,
        features=code_features(parent.code).names,
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
