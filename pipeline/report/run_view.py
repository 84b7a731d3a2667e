"""A run as its page shows it, independent of how its log writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from artifacts.task import TaskRef


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One candidate: what was tried, why, and what came out.

    ``step`` counts from 0; ``direction`` is a name for people; ``best`` marks the task's final candidate;
    ``paired_us`` is its time on one scale with the task's other candidates, see :mod:`pipeline.report.paired`.
    """

    step: int
    sha256: str
    parent: str
    mode: str
    direction: str
    strategies: tuple[str, ...]
    plan: str
    probability: float | None
    gate: str
    measurement: Measurement
    best: bool = False
    paired_us: float | None = None

    @property
    def correct(self) -> bool:
        """Whether the candidate passed every check."""
        return self.measurement.outcome is Outcome.CORRECT

    @property
    def promoted(self) -> bool:
        """Whether it may be the best: correct, and not called slower by its paired test."""
        return self.correct and self.measurement.faster_than_incumbent is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """All that happened on one task; ``steps`` in the order of the log.

    Attributes:
        confirmed: the final candidate measured again after the search; None when that was not asked for.
        refuted: why faster candidates failed then.
    """

    ref: TaskRef
    status: str
    steps: tuple[StepView, ...]
    confirmed: Measurement | None = None
    refuted: tuple[str, ...] = ()

    @property
    def final(self) -> StepView | None:
        """The verified candidate the run ended with."""
        return next((step for step in self.steps if step.best), None)

    @property
    def baselines(self) -> dict[str, float]:
        """Baseline name → microseconds when the winner was measured again, or else median over the task's medians."""
        times: dict[str, list[float]] = {}
        for step in self.steps:
            for name, timing in step.measurement.baselines.items():
                times.setdefault(name, []).append(timing.median_us)
        again = {} if self.confirmed is None else self.confirmed.baselines
        middle = {name: sorted(values)[len(values) // 2] for name, values in times.items()}
        return {name: again[name].median_us if name in again else value for name, value in middle.items()}

    @property
    def bound_us(self) -> float | None:
        """Speed-of-light bound in microseconds, where a profile gave one."""
        bounds = [step.measurement.profile.bound_us for step in self.steps if step.measurement.profile is not None]
        return next((bound for bound in bounds if bound is not None), None)

    def speedup(self, baseline: str) -> float | None:
        """Of the final candidate, against ``baseline`` of the same measurement (the one after the search if any)."""
        return self.verdict.speedup(baseline) if self.verdict else None

    @property
    def verdict(self) -> Measurement | None:
        """The measurement that the final candidate is reported with."""
        return self.confirmed or (self.final.measurement if self.final else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the run spent, as far as it was told; ``recorded`` answers came from a recording and cost nothing now."""

    calls: int = 0
    recorded: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    llm_s: float = 0.0
    build_s: float = 0.0
    gpu_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Read and written; 0 where nobody counted, as with answers that came through files."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run directory, read."""

    run_id: str
    path: Path
    arm: str
    llm: str
    device: str
    memory: str
    facts: Mapping[str, str]
    tasks: tuple[TaskView, ...]
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of all baselines, eager first."""
        names = {name for task in self.tasks for name in task.baselines}
        return tuple(sorted(names, key=lambda name: (name != "eager", name)))

    def speedups(self, baseline: str) -> dict[str, float | None]:
        """Task id → speedup of its final candidate; None without one."""
        return {task.ref.task_id: task.speedup(baseline) for task in self.tasks}
