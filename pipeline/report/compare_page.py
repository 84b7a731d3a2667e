"""The page that compares runs of several arms on the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from artifacts.measurement import Measurement
from pipeline.report import charts, page
from pipeline.report.figures import Pairing, Summary, pair, summarise
from pipeline.report.run_view import RunView, TaskView

SECTIONS = (("summary", "Summary"), ("pairs", "Paired differences"), ("tasks", "Task by task"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run under the name it is compared by."""

    name: str
    run: RunView
    summary: Summary

    @property
    def tasks(self) -> dict[str, TaskView]:
        """Tasks by id."""
        return {task.ref.task_id: task for task in self.run.tasks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two arms in pairs over the tasks that count in both runs.

    Attributes:
        found: ratios of the first over the second; None when no task counts in both.
        left_out: tasks of both runs that do not count in one of them → why.
        searched: tasks judged by the search's own figures on both sides, as one side was not measured again.
    """

    first: str
    second: str
    found: Pairing | None
    left_out: dict[str, str]
    searched: tuple[str, ...]


def compare_page(runs: Sequence[RunView]) -> str:
    """Render the comparison of ``runs``; paired ratios are always first run over second."""
    arms = [
        Arm(name=name, run=run, summary=summarise(list(run.speedups().values())))
        for name, run in zip(_names(runs), runs, strict=True)
    ]
    contests = [contest(first, second) for index, first in enumerate(arms) for second in arms[index + 1 :]]
    ends = [abs(math.log2(end)) for one in contests if one.found for end in _interval(one.found)]
    span = max([math.log2(1.25), *ends]) * 1.05
    return page.render(
        "compare.html.j2",
        kind="HTAM comparison",
        title=" against ".join(arm.name for arm in arms),
        sections=SECTIONS,
        arms=arms,
        contests=contests,
        tasks=sorted({task for arm in arms for task in arm.tasks}),
        curves=charts.fast_p_chart({arm.name: list(arm.run.speedups().values()) for arm in arms}),
        bar=lambda found: _bar(found, span),
        span=2**span,
    )


def contest(first: Arm, second: Arm) -> Contest:
    """Pair two arms; nobody is compared by a better measurement than the other."""
    shared = [name for name in first.tasks if name in second.tasks]
    sides = {name: (first.tasks[name], second.tasks[name]) for name in shared}
    once = [name for name, two in sides.items() if any(task.searched and not task.confirmed for task in two)]
    judged = {name: [task.searched if name in once else task.verdict for task in two] for name, two in sides.items()}
    left_out = {name: _left_out(sides[name], judged[name]) for name in shared}
    ours, theirs = (
        {name: each.speedup() if (each := judged[name][side]) else None for name in shared if not left_out[name]}
        for side in (0, 1)
    )
    return Contest(
        first=first.name,
        second=second.name,
        found=pair(ours, theirs),
        left_out={name: why for name, why in left_out.items() if why},
        searched=tuple(name for name in once if name in ours and any(task.confirmed for task in sides[name])),
    )


def _left_out(tasks: Sequence[TaskView], judged: Sequence[Measurement | None]) -> str:
    """Why a pair does not count."""
    unsteady = any(measured is not None and measured.unsteady for measured in judged)
    return next((task.left_out for task in tasks if task.left_out), "unsteady" if unsteady else "")


def _interval(found: Pairing) -> tuple[float, float, float]:
    return found.low or found.ratio, found.ratio, found.high or found.ratio


def _bar(found: Pairing, span: float) -> dict[str, float | str]:
    low, mean, high = (math.log2(value) for value in _interval(found))
    return charts.bar(low, mean, high, span)


def _names(runs: Sequence[RunView]) -> list[str]:
    """Arms by name; by run id where two runs share an arm."""
    arms = [run.arm for run in runs]
    return [run.arm if arms.count(run.arm) == 1 else f"{run.arm} ({run.run_id})" for run in runs]
