"""What ``htam logs inspect`` says: figures over logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.trajectory import Step, Trajectory, TrustFlag, time_ratio
from builder.read.collector import LogFile, LogResult
from builder.read.reading import read, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts over some logs.

    Attributes:
        measured: edges whose two ends have code, are correct and timed (or whose ratio was measured).
        gains, losses: measured edges that got at least 2 % faster or slower.
        fixes: edges from a failed parent to a correct child.
        failures: edges to a failed child.
    """

    files: int
    records: int
    trajectories: int
    tasks: int
    steps: int
    derived: int
    correct: int
    edges: int
    measured: int
    gains: int
    losses: int
    fixes: int
    failures: int
    quarantined: int
    outcomes: Mapping[str, int]
    flags: Mapping[str, int]
    reasons: Mapping[str, int]
    devices: Mapping[str, int]
    languages: Mapping[str, int]


def inspect_logs(paths: Iterable[Path | str]) -> dict[str, Any]:
    """Figures over all logs under ``paths``, per format, and what was quarantined or ignored; ready for JSON.

    A log that repeats another one byte by byte is read once.

    Raises:
        BadInputError: a path does not exist or holds no log.
    """
    logs, ignored = survey(paths)
    results: dict[str, LogResult] = {}
    for log in logs:
        result = read(log)
        first = results.setdefault(result.digest, result)
        if first is not result:
            ignored = (*ignored, (log.name, f"same content as {first.log.name}"))
    found = tuple(results.values())
    formats = sorted({result.format for result in found})
    return {
        "total": asdict(figures(found)),
        "formats": {name: asdict(figures(result for result in found if result.format == name)) for name in formats},
        "quarantined": [asdict(entry) for result in found for entry in result.quarantined],
        "ignored": [{"file": name, "reason": reason} for name, reason in ignored],
    }


@dataclass(frozen=True, slots=True)
class Remark:
    """What one line of a steps file lacks; ``lost`` when nothing can be mined of it."""

    line: int | None
    text: str
    lost: bool


def check_steps(path: Path) -> tuple[Figures, tuple[Remark, ...]]:
    """Read a file as plain steps whatever it looks like: figures, and what each line lacks, in the order of the lines.

    Raises:
        BadInputError: there is no such file, or it is a directory.
    """
    if path.is_dir():
        raise BadInputError(f"{path} is a directory", "give a file of steps, or see it with: htam logs inspect PATH")
    if not path.is_file():
        raise BadInputError(f"{path}: no such file", "give a file of steps, one a line")
    result = read(LogFile(path=path, format="steps", name=path.name))
    remarks = [Remark(entry.line, entry.reason, True) for entry in result.quarantined]
    for trajectory in result.trajectories:
        for step in trajectory.steps:
            lacks = list(_lacking(trajectory, step))
            if lacks:
                remarks.append(Remark(step.provenance.line, "; ".join(lacks), False))
    return figures([result]), tuple(sorted(remarks, key=lambda item: item.line or 0))


def _lacking(trajectory: Trajectory, step: Step) -> Iterator[str]:
    if step.parent_id is None:
        yield "no parent in the file: it starts a lineage, and is itself no step to learn from"
    if step.outcome is Outcome.CORRECT and step.runtime_us is None:
        yield "no time_us: nothing is known of what it gained"
    if step.parent_id is not None and not step.plan.strip():
        yield "no plan: it is described by its code alone"
    if not trajectory.device:
        yield "no device: it cannot be told from steps on others"
    if TrustFlag.TORCH_ONLY in step.flags:
        yield "no kernel in the code: weighs half"


def figures(files: Iterable[LogResult]) -> Figures:
    """Counts over some logs."""
    results = tuple(files)
    trajectories = [trajectory for result in results for trajectory in result.trajectories]
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    quarantined = [entry for result in results for entry in result.quarantined]
    edges = Counter(name for trajectory in trajectories for name in _edges(trajectory))
    return Figures(
        files=len(results),
        records=sum(result.records for result in results),
        trajectories=len(trajectories),
        tasks=len({trajectory.task.task_id for trajectory in trajectories}),
        steps=len(steps),
        derived=sum(result.derived for result in results),
        correct=sum(step.outcome is Outcome.CORRECT for step in steps),
        **{name: edges[name] for name in ("edges", "measured", "gains", "losses", "fixes", "failures")},
        quarantined=len(quarantined),
        outcomes=_counted(step.outcome.value for step in steps),
        flags=_counted(flag.value for step in steps for flag in step.flags),
        reasons=_counted(_kind(entry.reason) for entry in quarantined),
        devices=_counted(trajectory.device or "unknown" for trajectory in trajectories for _ in trajectory.steps),
        languages=_counted(step.language.value for step in steps),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _edges(trajectory: Trajectory) -> Iterator[str]:
    """The figures that each edge counts in."""
    by_id = {step.step_id: step for step in trajectory.steps}
    for child in trajectory.steps:
        if child.parent_id is None:
            continue
        parent = by_id[child.parent_id]
        ratio = None if TrustFlag.NO_CODE in child.flags | parent.flags else time_ratio(parent, child)
        yield "edges"
        if ratio is not None:
            yield "measured"
            yield from ["gains"] * (ratio >= 1.02) + ["losses"] * (ratio <= 1 / 1.02)
        elif child.outcome is not Outcome.CORRECT:
            yield "failures"
        elif parent.outcome is not Outcome.CORRECT:
            yield "fixes"


def _kind(reason: str) -> str:
    """Reason without what differs from record to record, so that equal kinds are counted together."""
    return reason.split(":")[0][:100]
