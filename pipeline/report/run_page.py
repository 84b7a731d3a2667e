"""The page of one run: what came out and what it is worth, then the story, then the checks."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.report import charts, page
from pipeline.report.charts import Axis, Chart, Dot
from pipeline.report.figures import Summary, summarise
from pipeline.report.lesson import Lesson
from pipeline.report.page import factor
from pipeline.report.run_view import RunView, StepView, TaskView
from pipeline.voice import counted

JITTER = 9.0
"""Pixels between candidates of one step."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Speedups over the fastest baseline, and steps, that all charts of a page span."""

    low: float
    high: float
    steps: int


def scale_of(run: RunView) -> Scale:
    """One scale for all tasks of a run."""
    values = [value for task in run.tasks for value in (*levels(task).values(), *_ratios(task).values())]
    last = max((step.step for task in run.tasks for step in task.steps), default=0)
    return Scale(min([0.8, *values]) / 1.2, max([1.25, *values]) * 1.2, last)


def levels(task: TaskView) -> dict[str, float]:
    """Baseline, or the bound → its speedup over the fastest baseline, which is 1."""
    fastest = _fastest_us(task)
    if fastest is None:
        return {}
    bound = {"bound": task.bound_us} if task.bound_us else {}
    return {name: fastest / time for name, time in {**task.baselines, **bound}.items()}


def speed_over_steps(task: TaskView, scale: Scale) -> Chart | None:
    """Candidates over the steps by their speedup on a log scale, joined to their parents; failures in a strip."""
    ratios = _ratios(task)
    if not ratios:
        return None
    x = charts.x_axis(-0.4, scale.steps + 0.4)
    y = charts.y_axis(scale.low, scale.high, log=True, strip=True)
    strip = charts.HEIGHT - charts.BOTTOM - charts.STRIP / 2
    places = _places(task, x)
    dots = tuple(
        Dot(
            x=place,
            y=y.at(ratios[index]) if index in ratios else strip,
            kind="best" if step.best else "candidate" if index in ratios else "failed",
            title=_title(step),
            target=f"{task.ref.task_id}-{index}",
        )
        for index, (step, place) in enumerate(zip(task.steps, places, strict=True))
    )
    return Chart(
        x_title="step",
        y_title="times as fast as the fastest baseline, log scale",
        x_ticks=tuple((x.at(step), str(step + 1)) for step in range(scale.steps + 1)),
        y_ticks=tuple((y.at(tick), f"{tick:g}×") for tick in y.ticks()),
        lines=charts.lines(
            [
                (
                    f"{name} {factor(level)}",
                    "bound" if name == "bound" else "baseline",
                    [(end, y.at(level)) for end in (x.start, x.end)],
                )
                for name, level in levels(task).items()
            ]
        ),
        dots=dots,
        edges=tuple(_edges(task, dots)),
        strip=strip,
    )


def _fastest_us(task: TaskView) -> float | None:
    """Time of the fastest baseline of the class on the scale of the chart."""
    told = next((step.measurement for step in task.steps if step.correct), None)
    names = told.precision.baselines if told else ()
    return min((task.baselines[name] for name in names if name in task.baselines), default=None)


def _ratios(task: TaskView) -> dict[int, float]:
    """Index of each correct candidate → its speedup over the fastest baseline along paired measurements."""
    fastest = _fastest_us(task)
    times = {
        index: step.paired_us or step.measurement.timing.median_us
        for index, step in enumerate(task.steps)
        if step.measurement.timing is not None
    }
    return {index: fastest / time for index, time in times.items()} if fastest else {}


def _places(task: TaskView, x: Axis) -> list[float]:
    """Candidates of a step stand side by side."""
    every, before = Counter(step.step for step in task.steps), Counter[int]()
    places = []
    for step in task.steps:
        places.append(x.at(step.step) + JITTER * (before[step.step] - (every[step.step] - 1) / 2))
        before[step.step] += 1
    return places


def _edges(task: TaskView, dots: Sequence[Dot]) -> Iterator[tuple[str, bool]]:
    """Lines between correct candidates, from parent to child; those on the way to the final one are marked."""
    path = {step.sha256 for step in _lineage(task)}
    places: dict[str, Dot] = {}
    for step, dot in zip(task.steps, dots, strict=True):
        parent = places.get(step.parent)
        if parent is not None and "failed" not in (parent.kind, dot.kind):
            yield f"M{parent.x},{parent.y} L{dot.x},{dot.y}", step.sha256 in path
        places.setdefault(step.sha256, dot)


def _title(step: StepView) -> str:
    measured = step.measurement
    verdict = (
        f"{charts.microseconds(measured.timing.median_us)}, {factor(measured.speedup())}"
        if measured.timing
        else f"{measured.outcome.value}: {measured.first_error[:160]}"
    )
    return f"step {step.step + 1} · {step.direction or step.mode}\n{verdict}"


def difference(task: TaskView) -> list[tuple[str, str]]:
    """Lines of the unified difference from the first correct candidate to the final one, each with its kind."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    before, after = task.first_source.splitlines(), task.source.splitlines()
    found = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]
    return [(kinds.get(line[:1], ""), line) for line in found]


def worth(task: TaskView) -> list[tuple[str, str]]:
    """What the headline of a task is worth, most damaging first: (``bad``, ``warn`` or ``good``, a sentence)."""
    verdict, said = task.verdict, list[tuple[str, str]]()
    if verdict is None:
        return said
    if not task.finished:
        said.append(("bad", f"The search has not ended ({task.status}): a better candidate may follow."))
    said += [("bad", f"{doubt.kind.value.capitalize()}: {doubt.text}.") for doubt in verdict.doubts]
    interval = verdict.speedup_interval()
    if interval and interval[0] <= 1.0 <= interval[1]:
        said.append(("warn", "The interval includes 1×: it may be no faster than the baseline."))
    if len(verdict.baselines) == 1:
        said.append(("warn", f"Compared with {next(iter(verdict.baselines))} alone: another baseline may be faster."))
    then = factor(task.searched.speedup()) if task.searched else ""
    if task.confirmed:
        said.append(("good", f"Measured again after the search, in a new process with other seeds (before: {then})."))
    else:
        said.append(("warn", "Unconfirmed: not measured again after the search, so a little flattered."))
    said.append(("good", f"{counted(len(set(verdict.checks)), 'check')} passed; times are of {verdict.scope}."))
    return said


SECTIONS = (
    ("result", "Result"),
    ("tasks", "Step by step"),
    ("checks", "Checks"),
    ("figures", "Means and fast_p"),
    ("learned", "What the memory learned"),
    ("facts", "How it was run"),
)


def run_page(run: RunView, lesson: Lesson | None = None) -> str:
    """Render the page of ``run``; ``lesson`` is what its log changed in a memory that was built with it."""
    many, scale = len(run.tasks) > 1, scale_of(run)
    shown = {"figures": many, "learned": lesson is not None}
    speedups = list(run.speedups().values())
    return page.render(
        "run.html.j2",
        kind="HTAM run",
        title=run.path.resolve().name,
        sections=[section for section in SECTIONS if shown.get(section[0], True)],
        lesson=lesson,
        run=run,
        others=() if run.one_baseline else run.baselines[1:],
        headline=summarise(speedups) if run.baselines and speedups else None,
        breakdown=breakdown(run),
        curves=charts.fast_p_chart({f"vs {name}": list(run.speedups(name).values()) for name in run.baselines}),
        speeds={task.ref.task_id: speed_over_steps(task, scale) for task in run.tasks},
        worth=worth,
        difference=difference,
        way=way,
        failed=[(task, step) for task in run.tasks for step in task.steps if not step.correct],
        notes=Counter(note for task in run.tasks for step in task.steps for note in step.measurement.notes),
    )


def _lineage(task: TaskView) -> list[StepView]:
    """The final candidate, its parent and so on."""
    by_sha = {step.sha256: step for step in reversed(task.steps)}
    taken: list[StepView] = []
    current = task.final
    while current is not None and current not in taken:
        taken.append(current)
        current = by_sha.get(current.parent)
    return taken


def way(task: TaskView) -> list[str]:
    """Directions from the first step to the final candidate, oldest first."""
    return [step.direction or step.mode for step in reversed(_lineage(task))]


def breakdown(run: RunView) -> list[tuple[str, str, Summary]]:
    """Summaries for all tasks that count, then per level and per family, each against every baseline."""
    tasks = [task for task in run.tasks if not task.left_out]
    groups = [("all tasks", tasks)]
    for name in ("level", "family"):
        values = sorted({getattr(task.ref, name) for task in tasks} - {None, ""})
        if len(values) > 1:
            groups += [
                (f"{name} {value}", [task for task in tasks if getattr(task.ref, name) == value]) for value in values
            ]
    return [
        (name, baseline, summarise([task.speedup(baseline) for task in members]))
        for name, members in groups
        for baseline in run.baselines
    ]
