"""What ``htam logs inspect`` says: figures over logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.trajectory import Step, Trajectory, TrustFlag, time_ratio
from builder.read.collector import LogFile, LogResult
from builder.read.reading import read, survey


@dataclass(slots=True, kw_only=True)
class Figures:
    """Counts over some logs.

    Attributes:
        measured: edges whose two ends have code, are correct and timed (or whose ratio was measured).
        gains, losses: measured edges that got at least 2 % faster or slower.
        fixes: edges from a failed parent to a correct child.
        failures: edges to a failed child.
    """

    files: int = 0
    records: int = 0
    trajectories: int = 0
    tasks: int = 0
    steps: int = 0
    derived: int = 0
    correct: int = 0
    edges: int = 0
    measured: int = 0
    gains: int = 0
    losses: int = 0
    fixes: int = 0
    failures: int = 0
    quarantined: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    languages: dict[str, int] = field(default_factory=dict)


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
        BadInputError: there is no such file.
    """
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
    total = Figures()
    tasks: set[str] = set()
    counters: dict[str, Counter[str]] = {
        name: Counter() for name in ("outcomes", "flags", "reasons", "devices", "languages")
    }
    for file in files:
        total.files += 1
        total.records += file.records
        total.derived += file.derived
        total.quarantined += len(file.quarantined)
        counters["reasons"].update(_kind(entry.reason) for entry in file.quarantined)
        for trajectory in file.trajectories:
            tasks.add(trajectory.task.task_id)
            _count(total, counters, trajectory)
    total.tasks = len(tasks)
    for name, counter in counters.items():
        setattr(total, name, dict(counter.most_common()))
    return total


def _count(total: Figures, counters: dict[str, Counter[str]], trajectory: Trajectory) -> None:
    total.trajectories += 1
    total.steps += len(trajectory.steps)
    counters["devices"][trajectory.device or "unknown"] += len(trajectory.steps)
    by_id = {step.step_id: step for step in trajectory.steps}
    for step in trajectory.steps:
        counters["outcomes"][step.outcome.value] += 1
        counters["languages"][step.language.value] += 1
        counters["flags"].update(flag.value for flag in step.flags)
        total.correct += step.outcome is Outcome.CORRECT
        if step.parent_id is not None:
            _count_edge(total, by_id[step.parent_id], step)


def _count_edge(total: Figures, parent: Step, child: Step) -> None:
    total.edges += 1
    ratio = edge_ratio(parent, child)
    if ratio is not None:
        total.measured += 1
        total.gains += ratio >= 1.02
        total.losses += ratio <= 1 / 1.02
    elif child.outcome is not Outcome.CORRECT:
        total.failures += 1
    elif parent.outcome is not Outcome.CORRECT:
        total.fixes += 1


def edge_ratio(parent: Step, child: Step) -> float | None:
    """Parent time over child time where the edge was measured between two sources; None otherwise."""
    if TrustFlag.NO_CODE in child.flags | parent.flags:
        return None
    return time_ratio(parent, child)


def _kind(reason: str) -> str:
    """Reason without what differs from record to record, so that equal kinds are counted together."""
    return reason.split(":")[0][:100]
