"""The kernels of a run that may leave it: verified, and measured again after the search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from artifacts.codec import decode
from artifacts.errors import BadInputError, RunLogError
from artifacts.measurement import Measurement, Outcome
from artifacts.run_events import LoggedStep, TaskFinished, TaskStarted
from artifacts.runlog import RunLog
from artifacts.task import TaskRef, slugify
from optimizer.run.manifest import RunManifest, read_manifest
from optimizer.run.winners import winner_source
from optimizer.search.population import Node

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The best candidate of one task.

    Attributes:
        name: Python identifier of the task, unique in the run.
        reference: source of the task.
        code: source of the candidate as it was measured.
        text: ``code`` with its figures and doubts as comments above it and ``load()`` below it.
        measured: the measurement that was taken after the search.
    """

    name: str
    task: TaskRef
    reference: str
    code: str
    text: str
    sha256: str
    step_id: str
    model: str
    measured: Measurement

    @property
    def backend(self) -> str:
        """``cpu`` or ``cuda``: what the candidate was measured on."""
        return "cpu" if self.measured.device.lower().startswith("cpu") else "cuda"

    @property
    def facts(self) -> list[str]:
        """Figures, doubts and origin, as they stand above the code."""
        head = self.text.partition("\n\n")[0]
        return [line.removeprefix("# ") for line in head.splitlines()[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """What a run has to give away.

    Attributes:
        left_out: task id → why nothing of it is exported.
    """

    run: RunManifest
    kernels: tuple[Winner, ...]
    left_out: dict[str, str]


def confirmed_winners(path: Path) -> Winners:
    """Read the winners of the run at ``path`` that were verified and measured again.

    Raises:
        RunLogError: no run, a damaged one, or none of its winners was confirmed.
    """
    log = RunLog.open(path)
    run = read_manifest(log)
    started: dict[str, TaskStarted] = {}
    steps: dict[tuple[str, str], LoggedStep] = {}
    finished: dict[str, TaskFinished] = {}
    for event in log.events():
        if event.kind == "task_started":
            started[event.key] = _read(TaskStarted, event.payload, path)
        elif event.kind == "step":
            step = _read(LoggedStep, event.payload, path)
            steps[step.task_id, step.step_id] = step
        elif event.kind == "task_finished":
            finished[event.key] = _read(TaskFinished, event.payload, path)
    left_out = {task: _missing(finished.get(task)) for task in started if _missing(finished.get(task))}
    kernels = tuple(
        _winner(log, run, started[task], steps[task, finished[task].best_step], finished[task])
        for task in started
        if task not in left_out
    )
    if not kernels:
        reasons = "; ".join(sorted(set(left_out.values()))) or "no task was begun"
        raise RunLogError(f"{path} has no confirmed winner ({reasons})", "let htam optimize finish with --confirm")
    return Winners(run=run, kernels=kernels, left_out=left_out)


def new_folder(path: Path) -> Path:
    """Make an empty folder.

    Raises:
        BadInputError: something is there already.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInputError(f"{path} is not empty", "name a new folder for --out")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _missing(finished: TaskFinished | None) -> str:
    """Why a task has nothing to export; empty when it has."""
    if finished is None:
        return "not finished"
    if not finished.best_step:
        return "no candidate was correct"
    again = finished.confirmed
    return "" if again is not None and again.outcome is Outcome.CORRECT else "the winner was not measured again"


def _winner(log: RunLog, run: RunManifest, started: TaskStarted, step: LoggedStep, finished: TaskFinished) -> Winner:
    again, found = finished.confirmed, step.measurement
    assert again is not None
    assert found is not None
    code = log.candidate(step.candidate_sha256)
    node = Node(
        step_id=step.step_id,
        parent_id=step.parent_id,
        index=step.index,
        mode=step.mode,
        source=code,
        sha256=step.candidate_sha256,
        plan=step.plan,
        direction=step.direction,
        strategies=step.strategies,
        measurement=found,
    )
    return Winner(
        name=_identifier(started.task.task_id),
        task=started.task,
        reference=log.candidate(started.source_sha256),
        code=code,
        text=winner_source(started.task.task_id, node, run, again),
        sha256=step.candidate_sha256,
        step_id=step.step_id,
        model=step.model,
        measured=again,
    )


def _identifier(task_id: str) -> str:
    """A Python name for a task; suite and level belong to it, so that no two tasks of a run share one."""
    name = re.sub(r"_+", "_", slugify(task_id))
    return name if name[:1].isalpha() else f"task_{name}"


def _read(kind: type[T], payload: object, path: Path) -> T:
    try:
        return decode(kind, payload)
    except BadInputError as problem:
        raise RunLogError(f"{path}: {problem.what}", "it is no run of this HTAM") from problem
