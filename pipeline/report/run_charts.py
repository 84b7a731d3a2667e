"""The charts of a run's page: speed over steps, fast_p curves, lineage tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report import charts
from pipeline.report.charts import Chart, Dot, Line
from pipeline.report.figures import fast_p
from pipeline.report.page import factor
from pipeline.report.run_view import RunView, StepView, TaskView

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Speedups at which fast_p is drawn; 0 is the share of correct tasks."""


def speed_over_steps(task: TaskView) -> Chart | None:
    """Time per candidate and best so far over the steps, with every baseline and the bound; log scale."""
    times = [_time(step) for step in task.steps]
    levels = {**task.baselines, **({"bound": task.bound_us} if task.bound_us else {})}
    known = [time for time in times if time is not None] + list(levels.values())
    if not known or all(time is None for time in times):
        return None
    last = max(step.step for step in task.steps)
    x = charts.x_axis(-0.3, last + 0.3)
    y = charts.y_axis(min(known) / 1.25, max(known) * 1.25, log=True)
    dots = [
        Dot(x.at(step.step), y.at(time), "best" if step.best else "candidate", _title(step))
        for step, time in zip(task.steps, times, strict=True)
        if time is not None
    ]
    failed = [
        Dot(x.at(step.step), charts.HEIGHT - charts.BOTTOM - 6, "failed", _title(step))
        for step, time in zip(task.steps, times, strict=True)
        if time is None
    ]
    series = [("best so far", "best", [(x.at(step), y.at(time)) for step, time in _best_so_far(task)])]
    for name, level in levels.items():
        series.append(
            (name, "bound" if name == "bound" else "baseline", [(x.start, y.at(level)), (x.end, y.at(level))])
        )
    return Chart(
        x_title="step",
        y_title="time along paired ratios, log scale",
        x_ticks=tuple((x.at(step), str(step + 1)) for step in range(last + 1)),
        y_ticks=tuple((y.at(tick), charts.microseconds(tick)) for tick in y.ticks()),
        lines=lines(series),
        dots=(*dots, *failed),
    )


def fast_p_curves(run: RunView) -> Chart | None:
    """Share of tasks correct and faster than p, one curve a baseline."""
    if not run.tasks or not run.baselines:
        return None
    x = charts.x_axis(0.0, float(len(THRESHOLDS) - 1))
    y = charts.y_axis(0.0, 1.0)
    series = []
    for name in run.baselines:
        speedups = list(run.speedups(name).values())
        points = [(x.at(index), y.at(fast_p(speedups, p))) for index, p in enumerate(THRESHOLDS)]
        series.append((f"vs {name}", "curve", points))
    return Chart(
        x_title="p (times as fast as the baseline)",
        y_title="share of tasks faster than p",
        x_ticks=tuple((x.at(index), f"{p:g}") for index, p in enumerate(THRESHOLDS)),
        y_ticks=tuple((y.at(tick), f"{tick:.0%}") for tick in y.ticks()),
        lines=lines(series),
    )


def lines(series: Sequence[tuple[str, str, list[tuple[float, float]]]]) -> tuple[Line, ...]:
    """Series with their labels moved apart at the right end."""
    drawn = [entry for entry in series if entry[2]]
    labels = charts.spread([points[-1][1] + 4 for _, _, points in drawn])
    return tuple(
        Line(name=name, kind=kind, points=tuple(points), label_y=label)
        for (name, kind, points), label in zip(drawn, labels, strict=True)
    )


def _time(step: StepView) -> float | None:
    return _measured(step) if step.paired_us is None else step.paired_us


def _measured(step: StepView) -> float | None:
    return step.measurement.timing.median_us if step.measurement.timing else None


def _best_so_far(task: TaskView) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    best: float | None = None
    for number in sorted({step.step for step in task.steps}):
        times = [time for step in task.steps if step.step == number and step.promoted and (time := _time(step))]
        candidates = times if best is None else [best, *times]
        if candidates:
            best = min(candidates)
            points.append((float(number), best))
    return points


def _title(step: StepView) -> str:
    measurement = step.measurement
    verdict = (
        charts.microseconds(_measured(step))
        if step.correct
        else f"{measurement.outcome.value}: {measurement.error[:160]}"
    )
    return f"step {step.step + 1} · {step.direction or step.mode}\n{verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One candidate of the lineage tree; ``kind`` is ``best``, ``correct`` or ``failed``."""

    x: float
    y: float
    kind: str
    label: str
    direction: str
    title: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Nodes with edges between them, in pixels; ``on`` edges lead to the final candidate."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, bool], ...]


def lineage(task: TaskView, baseline: str = "eager") -> Lineage | None:
    """Tree of candidates: columns are steps, edges lead from parent to child."""
    if not task.steps:
        return None
    column, row = 150.0, 54.0
    lanes = _lanes(task)
    nodes = []
    places: dict[str, tuple[float, float]] = {}
    for index, step in enumerate(task.steps):
        place = (70.0 + column * step.step, 26.0 + row * lanes[index])
        nodes.append(_node(step, place, baseline, f"{task.ref.task_id}-{index}"))
        places.setdefault(step.sha256, place)
    path = _ancestry(task)
    edges = []
    for step, node in zip(task.steps, nodes, strict=True):
        start = places.get(step.parent)
        if start is not None and start[0] < node.x:
            bend = (start[0] + node.x) / 2
            curve = f"M{start[0] + 9},{start[1]} C{bend},{start[1]} {bend},{node.y} {node.x - 9},{node.y}"
            edges.append((curve, step.sha256 in path))
    width = 140.0 + column * max(step.step for step in task.steps)
    return Lineage(width=width, height=30.0 + row * (max(lanes) + 1), nodes=tuple(nodes), edges=tuple(edges))


def _lanes(task: TaskView) -> list[int]:
    """Row of each candidate: its parent's row if that is free in its column, else the first free one below."""
    rows: dict[str, int] = {}
    taken: set[tuple[int, int]] = set()
    lanes = []
    for step in task.steps:
        lane = rows.get(step.parent, 0)
        while (step.step, lane) in taken:
            lane += 1
        taken.add((step.step, lane))
        rows.setdefault(step.sha256, lane)
        lanes.append(lane)
    return lanes


def _node(step: StepView, place: tuple[float, float], baseline: str, target: str) -> Node:
    speedup = step.measurement.speedup(baseline)
    label = factor(speedup) if speedup is not None else step.measurement.outcome.value.replace("_", " ")
    kind = "best" if step.best else "correct" if step.correct else "failed"
    direction = step.direction or step.mode
    return Node(x=place[0], y=place[1], kind=kind, label=label, direction=direction, title=_title(step), target=target)


def _ancestry(task: TaskView) -> set[str]:
    parents = {step.sha256: step.parent for step in task.steps}
    found: set[str] = set()
    current = task.final.sha256 if task.final else ""
    while current and current not in found:
        found.add(current)
        current = parents.get(current, "")
    return found
