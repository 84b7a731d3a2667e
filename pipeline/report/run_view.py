"""A run directory as its page shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from artifacts.codec import decode
from artifacts.errors import RunLogError
from artifacts.measurement import FASTEST, Measurement, Outcome, doubt_mark
from artifacts.run_events import LoggedStep, TaskFinished, TaskStarted
from artifacts.runlog import Event, RunLog
from artifacts.task import TaskRef
from optimizer.run.winners import FOLDER, winner_name
from pipeline.report.paired import paired_times

UNUSABLE = "cannot be evaluated"
"""How the status of a task begins whose reference fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One candidate: what was tried, why, and what came out.

    ``step`` counts from 0; ``direction`` is a name for people; ``shown`` is part of the prompt → how many things stood
    in it; ``best`` marks the task's final candidate; ``paired_us`` is its time on one scale with the task's other
    candidates, see :mod:`pipeline.report.paired`.
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
    shown: Mapping[str, int] = field(default_factory=dict)
    best: bool = False
    paired_us: float | None = None

    @property
    def correct(self) -> bool:
        """Whether the candidate passed every check."""
        return self.measurement.outcome is Outcome.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """All that happened on one task; ``steps`` in the order of the log.

    Attributes:
        finished: whether the log holds the end of its search.
        confirmed: the final candidate measured again after the search; None when that was not done.
        refuted: why faster candidates failed then.
        source, first_source: of the final candidate and of the first correct one; empty where the run lacks the file.
        file: the winner as a file that loads on its own; None where the run directory has none.
    """

    ref: TaskRef
    status: str
    steps: tuple[StepView, ...]
    finished: bool = True
    confirmed: Measurement | None = None
    refuted: tuple[str, ...] = ()
    source: str = ""
    first_source: str = ""
    file: Path | None = None

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

    def speedup(self, baseline: str = FASTEST) -> float | None:
        """Of the final candidate, against ``baseline`` of the same measurement (the one after the search if any)."""
        return self.verdict.speedup(baseline) if self.verdict else None

    @property
    def verdict(self) -> Measurement | None:
        """The measurement that the final candidate is reported with."""
        return self.confirmed or self.searched

    @property
    def searched(self) -> Measurement | None:
        """The measurement by which the search chose the final candidate."""
        return self.final.measurement if self.final else None

    @property
    def left_out(self) -> str:
        """Why no figure over tasks and no comparison may count this one; empty when it counts."""
        doubted = self.verdict is not None and self.verdict.unsteady
        return self.marks[0] if doubted or not self.finished else ""

    @property
    def marks(self) -> tuple[str, ...]:
        """What stands beside the ratio wherever it is shown; empty when it is as good as a ratio gets."""
        open_ended = UNUSABLE if self.status.startswith(UNUSABLE) else "unfinished"
        if self.verdict is None:
            return () if self.finished else (open_ended,)
        doubt = doubt_mark(self.verdict.doubts)
        said = {open_ended: not self.finished, doubt: bool(doubt), "unconfirmed": self.confirmed is None}
        return tuple(mark for mark, holds in said.items() if holds)

    @property
    def kind(self) -> str:
        """``good`` or ``bad`` where the ratio can be believed and its interval excludes 1, else empty."""
        if self.verdict is None:
            return "bad" if self.finished else ""
        low, high = self.verdict.speedup_interval() or (1.0, 1.0)
        return "" if self.left_out or low <= 1.0 <= high else "good" if low > 1.0 else "bad"


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
        """What speedups are told against: the fastest baseline of each task's class first, then each by name."""
        names = sorted({name for task in self.tasks for name in task.baselines})
        return (FASTEST, *names) if len(names) > 1 else tuple(names)

    def speedups(self, baseline: str = FASTEST) -> dict[str, float | None]:
        """Task id → speedup of its final candidate, None without one; of the tasks that count."""
        return {task.ref.task_id: task.speedup(baseline) for task in self.tasks if not task.left_out}

    @property
    def one_baseline(self) -> bool:
        """Whether each task was compared with one baseline, which is then the fastest by default."""
        told = [task.verdict.baselines for task in self.tasks if task.verdict]
        return bool(told) and all(len(baselines) == 1 for baselines in told)

    @property
    def marked(self) -> dict[str, list[str]]:
        """Mark → ids of the tasks whose ratio bears it."""
        marks = dict.fromkeys(mark for task in self.tasks for mark in task.marks)
        return {mark: [task.ref.task_id for task in self.tasks if mark in task.marks] for mark in marks}


def read_run(path: Path, direction_names: Mapping[str, str] | None = None) -> RunView:
    """Read the run in ``path``; directions are shown under ``direction_names`` where they are known.

    Raises:
        RunLogError: no run, one that is damaged, or one that has not begun.
    """
    log = RunLog.open(path)
    events = list(log.events())
    if not events:
        raise RunLogError(f"{path} has not begun: there is nothing in its log", "give its htam optimize command again")
    steps = [decode(LoggedStep, event.payload) for event in events if event.kind == "step"]
    started = [decode(TaskStarted, event.payload) for event in events if event.kind == "task_started"]
    resumed = max((event.seq for event in events if event.kind == "steps_changed"), default=-1)  # ends before are void
    ends = [event for event in events if event.kind == "task_finished" and event.seq > resumed]
    finished = {event.key: decode(TaskFinished, event.payload) for event in ends}
    choices = {event.key: event.payload["choice"] for event in events if event.kind == "choice"}
    tasks = [
        _with_sources(
            _task(
                item,
                [step for step in steps if step.task_id == item.task.task_id],
                finished,
                direction_names or {},
                choices,
                _status(events, item.task.task_id),
            ),
            log,
        )
        for item in started
    ]
    facts = _facts(log.manifest)
    return RunView(
        run_id=facts.get("run_id") or path.resolve().name,
        path=path,
        arm=facts.get("arm", "unknown"),
        llm=facts.get("llm", "unknown model"),
        device=_device(steps) or facts.get("device", ""),
        memory=facts.get("memory", ""),
        facts=facts,
        tasks=tuple(tasks),
        cost=_cost(events),
        notes=tuple(str(event.payload["text"]) for event in events if event.kind == "note" and "text" in event.payload),
    )


def _task(
    item: TaskStarted,
    steps: list[LoggedStep],
    finished: Mapping[str, TaskFinished],
    names: Mapping[str, str],
    choices: Mapping[str, Mapping[str, Any]],
    status: str,
) -> TaskView:
    end = finished.get(item.task.task_id)
    best = end.best_step if end else (steps[-1].best_id or "" if steps else "")
    times = paired_times(steps, best, end.confirmed if end else None)
    views = [_step(step, names, choices.get(f"{step.task_id}/{step.step_id}", {})) for step in steps]
    shown = [
        replace(view, best=step.step_id == best, paired_us=times.get(step.step_id))
        for view, step in zip(views, steps, strict=True)
    ]
    return TaskView(
        ref=item.task,
        status=end.reason if end else status,
        steps=tuple(shown),
        finished=end is not None,
        confirmed=end.confirmed if end else None,
        refuted=tuple(f"step {step}: {why}" for step, why in end.refuted.items()) if end else (),
    )


def _with_sources(task: TaskView, log: RunLog) -> TaskView:
    """The task with the code of its winner, and of the first correct candidate that it started from."""
    if task.final is None:
        return task
    first = next(step for step in task.steps if step.correct)
    file = log.path / FOLDER / f"{winner_name(task.ref.task_id)}.py"
    return replace(
        task,
        source=_source(log, task.final.sha256),
        first_source=_source(log, first.sha256),
        file=file if file.exists() else None,
    )


def _source(log: RunLog, sha256: str) -> str:
    with suppress(RunLogError):
        return log.candidate(sha256)
    return ""


def _status(events: Iterable[Event], task_id: str) -> str:
    """Where a task stands that has not finished."""
    checks = [event.payload for event in events if (event.kind, event.key) == ("measurement", f"{task_id}/reference")]
    return next((f"{UNUSABLE}: {check['error']}" for check in checks if check["error"]), "not finished")


def _step(step: LoggedStep, names: Mapping[str, str], choice: Mapping[str, Any]) -> StepView:
    measurement = step.measurement or Measurement(
        outcome=Outcome.REJECTED, stage="answer", device="", error=step.error or "the answer held no usable code"
    )
    return StepView(
        step=step.index,
        sha256=step.candidate_sha256,
        parent=step.parent_sha256,
        mode=step.mode,
        direction=names.get(step.direction, step.direction) or _order(choice),
        strategies=tuple(names.get(name, name) for name in step.strategies),
        plan=step.plan,
        probability=step.choice_probability,
        gate=str(choice.get("gate", "")),
        shown={part: len(ids) for part, ids in step.shown.items()},
        measurement=measurement,
    )


def _order(choice: Mapping[str, Any]) -> str:
    """The move, or the intent of the model's own list in a few words, that a step makes; empty for neither."""
    intent = choice.get("intent")
    return f"{intent['number']}. {intent['text'][:60]}" if intent else str(choice.get("move", ""))


def _device(steps: Iterable[LoggedStep]) -> str:
    names = sorted({step.measurement.device for step in steps if step.measurement and step.measurement.device})
    return ", ".join(names)


def _cost(events: Sequence[Event]) -> Cost:
    answers = [event.payload for event in events if event.kind == "answer"]
    measured = [event.payload for event in events if event.kind == "measurement"]
    return Cost(
        calls=len(answers),
        recorded=sum(answer["recorded"] for answer in answers),
        prompt_tokens=sum(answer["prompt_tokens"] for answer in answers),
        completion_tokens=sum(answer["completion_tokens"] for answer in answers),
        usd=sum(answer["cost_usd"] or 0.0 for answer in answers),
        llm_s=sum(answer["seconds"] for answer in answers),
        build_s=round(sum(item["build_s"] for item in measured), 1),
        gpu_s=round(sum(item["gpu_s"] for item in measured), 1),
    )


def _facts(manifest: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Manifest entries as flat text, nested names joined by dots."""
    flat: dict[str, str] = {}
    for name, value in manifest.items():
        if isinstance(value, Mapping):
            flat |= _facts(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            flat[f"{prefix}{name}"] = ", ".join(str(item) for item in value)[:300]
        elif value not in (None, ""):
            flat[f"{prefix}{name}"] = str(value)
    return flat
