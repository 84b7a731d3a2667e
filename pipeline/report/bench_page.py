"""The field's table of a benchmark: correct, fast_p and geometric means, as data, as Markdown and as a page."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.codec import encode
from artifacts.first_error import first_error
from artifacts.measurement import FASTEST
from pipeline.bench.kernelbench import Problem, Sample
from pipeline.report import page

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""p of fast_p, KernelBench's and 0.5 for what is nearly as fast; fast_0 is the share of correct candidates."""
ALL_LEVELS = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything that the table is made of; ``facts`` says how it was made."""

    title: str
    problems: tuple[Problem, ...]
    samples: tuple[Sample, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    def of(self, problem: Problem) -> list[Sample]:
        """Candidates of one of the problems, of which there may be none."""
        return [sample for sample in self.samples if sample.problem is problem]

    @property
    def waiting(self) -> int:
        """Candidates that have not been evaluated yet; their tasks are in no figure."""
        return sum(sample.measurement is None for sample in self.samples)

    @property
    def doubted(self) -> list[Sample]:
        """Candidates whose times are to be believed less; the figures count them as they are."""
        return [sample for sample in self.samples if sample.measurement is not None and sample.measurement.doubts]

    @property
    def disagreements(self) -> list[Sample]:
        """Candidates on which the two evaluators differ."""
        return [sample for sample in self.samples if sample.agrees is False]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of a set of tasks against one baseline; a task without a correct candidate is a failure, at 1×.

    Attributes:
        choice: which candidate of a task counts.
        fast: share of all tasks that are correct and more than p times as fast, in the order of :data:`THRESHOLDS`.
        over_correct: geometric mean of the speedups of correct candidates; None when there is none.
    """

    choice: str
    level: str
    baseline: str
    tasks: int
    fast: tuple[float, ...]
    over_correct: float | None
    over_all: float


Speedups = Sequence[float | None]
"""Of the candidates of one task; None for one that is not correct."""


def scores(bench: Bench) -> tuple[Score, ...]:
    """All figures: for each choice, level and baseline; tasks that still wait are left out."""
    tried = [(problem, bench.of(problem)) for problem in bench.problems]
    tried = [(problem, samples) for problem, samples in tried if all(each.measurement for each in samples)]
    levels = sorted({problem.level for problem, _ in tried})
    groups = {ALL_LEVELS: [samples for _, samples in tried]} if len(levels) > 1 else {}
    groups |= {str(level): [samples for problem, samples in tried if problem.level == level] for level in levels}
    return tuple(
        score
        for choice, chosen in _choices(max((len(samples) for _, samples in tried), default=0)).items()
        for level, group in groups.items()
        for baseline in _baselines(bench)
        for score in [_score(choice, level, baseline, [_speedups(samples, baseline) for samples in group], chosen)]
        if score is not None
    )


def _choices(most: int) -> dict[str, Callable[[Speedups], Speedups]]:
    if most <= 1:
        return {"one candidate a task": lambda speedups: speedups}
    return {f"one of up to {most}, mean over them (pass@1)": lambda speedups: speedups, f"best of up to {most}": _best}


def _best(speedups: Speedups) -> Speedups:
    correct = [value for value in speedups if value is not None]
    return [max(correct)] if correct else [None]


def _baselines(bench: Bench) -> list[str]:
    """Names of all that candidates were compared with; the fastest of each task first."""
    named = {name for sample in bench.samples for name in speedups_of(sample)}
    return sorted(named or {FASTEST}, key=lambda name: (name != FASTEST, name))


def speedups_of(sample: Sample) -> dict[str, float]:
    """Speedups of a candidate by baseline; empty for one that is not correct."""
    return {} if sample.measurement is None else sample.measurement.speedups


def _speedups(samples: Sequence[Sample], baseline: str) -> Speedups | None:
    """Of a task's candidates; None where a correct one was not compared with that baseline, which could not be had."""
    found: list[float | None] = []
    for sample in samples:
        speedups = speedups_of(sample)
        if speedups and baseline not in speedups:
            return None
        found.append(speedups.get(baseline))
    return found or [None]


def _score(
    choice: str,
    level: str,
    baseline: str,
    tasks: Sequence[Speedups | None],
    chosen: Callable[[Speedups], Speedups],
) -> Score | None:
    """Every task weighs the same, and so do its candidates."""
    counted = [chosen(task) for task in tasks if task is not None]
    if not counted:
        return None
    weighted = [(value, 1 / len(task)) for task in counted for value in task]
    right = [(math.log(value), weight) for value, weight in weighted if value is not None]
    share = sum(weight for _, weight in right)
    total = sum(log * weight for log, weight in right)
    return Score(
        choice=choice,
        level=level,
        baseline=baseline,
        tasks=len(counted),
        fast=tuple(
            sum(weight for value, weight in weighted if value is not None and value > p) / len(counted)
            for p in THRESHOLDS
        ),
        over_correct=math.exp(total / share) if right else None,
        over_all=math.exp(total / len(counted)),
    )


def outcomes(bench: Bench) -> list[tuple[str, int]]:
    """How often each verdict came, the most frequent first; tasks without a candidate are counted too."""
    counts = Counter(sample.measurement.outcome.value for sample in bench.samples if sample.measurement is not None)
    counts["no candidate"] = sum(not bench.of(problem) for problem in bench.problems)
    counts["not evaluated yet"] = bench.waiting
    return [(name, count) for name, count in counts.most_common() if count]


def as_data(bench: Bench) -> dict[str, Any]:
    """The table and all that it is made of, for machines; speedups and times without raw samples."""
    return {
        "title": bench.title,
        "facts": dict(bench.facts),
        "thresholds": list(THRESHOLDS),
        "waiting": bench.waiting,
        "outcomes": dict(outcomes(bench)),
        "scores": [encode(score) for score in scores(bench)],
        "candidates": [_as_row(sample) for sample in bench.samples],
        "without_candidate": [problem.task.ref.task_id for problem in bench.problems if not bench.of(problem)],
        "doubted": [sample.name for sample in bench.doubted],
        "disagreements": [sample.name for sample in bench.disagreements],
    }


def _as_row(sample: Sample) -> dict[str, Any]:
    found = sample.measurement
    return {
        "name": sample.name,
        "task_id": sample.problem.task.ref.task_id,
        "sha256": sample.sha256,
        "outcome": None if found is None else found.outcome.value,
        "error": "" if found is None else found.error,
        "time_us": None if found is None or found.timing is None else found.timing.median_us,
        "speedups": speedups_of(sample),
        "doubts": [] if found is None else encode(found.doubts),
        "kernelbench": None if sample.other is None else encode(sample.other),
    }


def as_markdown(bench: Bench) -> str:
    """The table as Markdown."""
    parts = [f"# {bench.title}", *(f"- {name}: {value}" for name, value in bench.facts.items())]
    parts += ["", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in outcomes(bench)), ""]
    head = ["candidates", "level", "baseline", "tasks", *(f"fast_{p:g}" for p in THRESHOLDS), "correct ones", "all"]
    parts += [_line(head), _line(["---"] * len(head))]
    for one in scores(bench):
        shares = [page.percent(share) for share in one.fast]
        means = [page.factor(one.over_correct), page.factor(one.over_all)]
        parts.append(_line([one.choice, one.level, one.baseline, str(one.tasks), *shares, *means]))
    parts += ["", NOTE, ""]
    for sample in bench.doubted:
        assert sample.measurement is not None
        parts += [f"- {sample.name} is to be believed less: {doubt.text}" for doubt in sample.measurement.doubts]
    if any(sample.other for sample in bench.samples):
        parts += [f"## KernelBench's own verdict\n\n{agreement(bench)}", ""]
        parts += [f"- {sample.name}: {_both(sample)}" for sample in bench.disagreements]
    return "\n".join(parts).rstrip() + "\n"


NOTE = (
    "fast_p is the share of all tasks whose candidate is correct and more than p times as fast as the baseline; fast_0 "
    "is the share of correct ones. The columns of correct ones and of all are geometric means; in the latter failures "
    "and missing candidates count 1×."
)


def agreement(bench: Bench) -> str:
    """How far the two evaluators agree, in a sentence."""
    judged = [sample for sample in bench.samples if sample.agrees is not None]
    silent = sum(sample.other is not None for sample in bench.samples) - len(judged)
    rest = f"; one of them gave no verdict on {silent}" if silent else ""
    return f"Both evaluators say the same of {sum(bool(sample.agrees) for sample in judged)} of {len(judged)}{rest}."


def _both(sample: Sample) -> str:
    assert sample.measurement is not None
    assert sample.other is not None
    sides = (
        (f"{sample.measurement.outcome.value} here", sample.measurement.first_error),
        ("correct there" if sample.other.correct else "not correct there", first_error(sample.other.error)),
    )
    return ", ".join(f"{verdict} ({why})" if why else verdict for verdict, why in sides)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bench_page(bench: Bench) -> str:
    """Render the page."""
    checked = any(sample.other for sample in bench.samples)
    sections = [("scores", "Table"), ("candidates", "Candidates"), ("facts", "How it was run")]
    return page.render(
        "bench.html.j2",
        kind="HTAM benchmark",
        title=bench.title,
        sections=[sections[0], *([("agreement", "KernelBench's own verdict")] if checked else []), *sections[1:]],
        bench=bench,
        scores=scores(bench),
        outcomes=outcomes(bench),
        baselines=_baselines(bench),
        speedups={sample.name: speedups_of(sample) for sample in bench.samples},
        thresholds=THRESHOLDS,
        agreement=agreement(bench) if checked else "",
        note=NOTE,
    )


def write_tables(folder: Path, bench: Bench) -> None:
    """Write ``summary.json``, ``summary.md`` and ``report.html``, each in one step."""
    page.write(folder / "summary.json", json.dumps(as_data(bench), indent=1) + "\n")
    page.write(folder / "summary.md", as_markdown(bench))
    page.write(folder / "report.html", bench_page(bench))
