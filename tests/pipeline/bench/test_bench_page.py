"""The figures of a benchmark's table, worked out by hand."""

from __future__ import annotations

import math

import pytest

from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.task import kernelbench_task
from optimizer.tasks import Task
from pipeline.bench.kernelbench import OtherVerdict, Problem, Sample
from pipeline.report import page
from pipeline.report.bench_page import Bench, as_data, as_markdown, bench_page, scores


def timing(us: float) -> Timing:
    return Timing(median_us=us, low_us=us, high_us=us)


Found = tuple[Measurement | None, OtherVerdict | None]


def entry(speedup: float | None, *, compiled: bool = True, other: OtherVerdict | None = None) -> Found:
    if speedup is None:
        wrong = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="h100", error="3 of 9 differ")
        return wrong, other
    baselines = {"eager": timing(100.0)} | ({"compile": timing(50.0)} if compiled else {})
    right = {"outcome": Outcome.CORRECT, "stage": "timing", "device": "h100", "timing": timing(100.0 / speedup)}
    return Measurement(**right, baselines=baselines), other  # type: ignore[arg-type]


def problem(number: int, *entries: Found, level: int = 1) -> tuple[Problem, list[Sample]]:
    task = Task(ref=kernelbench_task(level, f"{number}_x.py"), source="", path="")
    one = Problem(level=level, number=number, task=task)
    samples = enumerate(entries)
    return one, [
        Sample(problem=one, number=n, source="", measurement=found, other=said) for n, (found, said) in samples
    ]


def bench(*problems: tuple[Problem, list[Sample]]) -> Bench:
    samples = tuple(sample for _, own in problems for sample in own)
    return Bench(
        title="KernelBench, level 1",
        problems=tuple(one for one, _ in problems),
        samples=samples,
        facts={"device": "h100"},
    )


FOUR = bench(
    problem(1, entry(2.0)),
    problem(2, entry(0.5)),
    problem(3, entry(None)),
    problem(4),
)


def test_failures_and_missing_candidates_count_in_every_share() -> None:
    eager = next(score for score in scores(FOUR) if score.baseline == "eager")
    assert (eager.level, eager.baseline, eager.tasks) == ("1", "eager", 4)
    assert eager.fast == (0.5, 0.25, 0.25, 0.25, 0.25, 0.0)  # faster than p, not as fast as p


def test_means_over_correct_and_over_all_tell_failures_apart() -> None:
    one = next(
        each for each in scores(bench(problem(1, entry(4.0)), problem(2, entry(None)))) if each.baseline == "eager"
    )
    assert one.over_correct == pytest.approx(4.0)
    assert one.over_all == pytest.approx(2.0)
    assert scores(bench(problem(1)))[0].over_correct is None


def test_every_baseline_has_its_own_figures() -> None:
    by_name = {score.baseline: score for score in scores(FOUR)}
    assert by_name["compile"].fast == (0.5, 0.25, 0.25, 0.0, 0.0, 0.0)
    assert by_name["fastest"].fast == by_name["compile"].fast


def test_a_task_whose_baseline_could_not_be_had_is_not_in_its_figures() -> None:
    found = {s.baseline: s for s in scores(bench(problem(1, entry(2.0)), problem(2, entry(2.0, compiled=False))))}
    assert (found["eager"].tasks, found["compile"].tasks) == (2, 1)


def test_levels_are_told_apart_and_together() -> None:
    found = scores(bench(problem(1, entry(2.0)), problem(1, entry(None), level=2)))
    assert [(s.level, s.tasks) for s in found if s.baseline == "eager"] == [("all", 2), ("1", 1), ("2", 1)]


def test_of_several_samples_the_mean_and_the_best_are_told() -> None:
    several = bench(problem(1, entry(2.0), entry(None)), problem(2, entry(8.0)))
    mean, best = [score for score in scores(several) if score.baseline == "eager"]
    assert (mean.fast[0], best.fast[0]) == (0.75, 1.0)
    assert mean.over_all == pytest.approx(math.exp((math.log(2) / 2 + math.log(8)) / 2))
    assert best.over_all == pytest.approx(4.0)
    assert "pass@1" in mean.choice
    assert best.choice == "best of up to 2"


def test_a_task_that_waits_is_in_no_figure() -> None:
    found = bench(problem(1, entry(2.0)), problem(2, (None, None)))
    assert scores(found)[0].tasks == 1
    assert as_data(found)["waiting"] == 1
    assert "Not finished" in bench_page(found)


def test_disagreements_are_listed_and_silence_is_none() -> None:
    yes, no, silent = (OtherVerdict(correct=word, error="" if word else "mismatch") for word in (True, False, None))
    found = bench(
        problem(1, entry(2.0, other=yes)),
        problem(2, entry(None, other=yes)),
        problem(3, entry(2.0, other=no)),
        problem(4, entry(2.0, other=silent)),
    )
    assert as_data(found)["disagreements"] == ["level_1_problem_2_sample_0", "level_1_problem_3_sample_0"]
    text = as_markdown(found)
    assert "the same of 1 of 3; one of them gave no verdict on 1." in text
    assert "_2_sample_0: wrong_result here (3 of 9 differ), correct there" in text
    assert "_3_sample_0: correct here, not correct there (mismatch)" in text


def test_the_page_loads_nothing_and_escapes_what_candidates_say() -> None:
    hostile = Measurement(
        outcome=Outcome.COMPILE_ERROR, stage="build", device="h100", error="<script>alert(1)</script>"
    )
    html = bench_page(bench(problem(1, (hostile, None))))
    assert "<script>alert" not in html
    assert page.OUTSIDE.search(html) is None
