"""Winners are measured again: what is reported, and what happens when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from artifacts.codec import decode
from artifacts.measurement import Doubt, DoubtKind, Measurement, Outcome
from artifacts.run_events import TaskFinished
from artifacts.runlog import RunLog
from optimizer.evaluation.job import EvaluationJob
from optimizer.run.winners import winner_source
from optimizer.search.settings import SearchSettings
from optimizer.search.task_search import TaskSearch

CONFIRMING = SearchSettings(steps=4, candidates=2, confirm=True)


class SecondLook:
    """An evaluator whose second measurement of a candidate is another: ``verdict`` makes it from the first."""

    def __init__(self, first: Any, verdict: Callable[[EvaluationJob, Measurement], Measurement]) -> None:
        self._first = first
        self._verdict = verdict
        self.again: list[EvaluationJob] = []

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        for job in jobs:
            ((_, measured),) = self._first.evaluate([job])
            if job.job_id.endswith("/confirm"):
                self.again.append(job)
                measured = self._verdict(job, measured)
            yield job.job_id, measured

    def close(self) -> None:
        pass


def slower(_: EvaluationJob, measured: Measurement) -> Measurement:
    timing = measured.timing
    assert timing is not None
    doubled = replace(timing, median_us=2 * timing.median_us, low_us=2 * timing.low_us, high_us=2 * timing.high_us)
    return replace(measured, timing=doubled)


def failing(first: int) -> Callable[[EvaluationJob, Measurement], Measurement]:
    seen: list[str] = []

    def verdict(job: EvaluationJob, measured: Measurement) -> Measurement:
        seen.append(job.job_id)
        if len(seen) > first:
            return measured
        return Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="seed 9 differs")

    return verdict


def confirmed(run: Any, verdict: Callable[[EvaluationJob, Measurement], Measurement]) -> tuple[TaskSearch, SecondLook]:
    run.evaluator = SecondLook(run.evaluator, verdict)
    log = run.effect_log()
    session = run.session(log)
    assert asyncio.run(session.advance()).complete
    log.log.close()
    return session.searches[0], run.evaluator


def finished(run: Any) -> TaskFinished:
    (payload,) = [event.payload for event in RunLog.open(run.path).events() if event.kind == "task_finished"]
    return decode(TaskFinished, payload)


def test_a_winner_is_reported_with_its_second_measurement(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    search, evaluator = confirmed(run, slower)
    best = search.population.best
    assert best is not None
    seen = best.measurement.speedup()
    assert seen is not None
    assert finished(run).speedups["eager_fp32"] == pytest.approx(seen / 2)
    assert finished(run).best_step == best.step_id
    assert [job.incumbent_source for job in evaluator.again] == [""]


def test_the_second_measurement_has_seeds_of_its_own(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    seeds: dict[str, int] = {}
    evaluate = run.evaluator.evaluate

    def spy(jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        listed = list(jobs)
        seeds.update({job.job_id: job.seed for job in listed})
        return evaluate(listed)  # type: ignore[no-any-return]

    run.evaluator.evaluate = spy
    confirmed(run, slower)
    assert len(set(seeds.values())) == len(seeds)


def test_a_winner_that_fails_the_second_time_gives_way_to_the_next_best(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    search, evaluator = confirmed(run, failing(1))
    first, second = (job.job_id.split("/")[-2] for job in evaluator.again)
    assert finished(run).best_step == second == search.population.best.step_id  # type: ignore[union-attr]
    assert list(finished(run).refuted) == [first]
    assert "seed 9 differs" in finished(run).refuted[first]


def test_a_task_whose_candidates_all_fail_the_second_time_has_no_confirmed_figure(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    _, evaluator = confirmed(run, failing(99))
    assert finished(run).confirmed is None
    assert len(finished(run).refuted) == len(evaluator.again) <= 3


def test_a_host_that_fails_leaves_the_figures_of_the_search(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.search.effects.INFRASTRUCTURE_RETRIES", 0)

    def down(_: EvaluationJob, measured: Measurement) -> Measurement:
        return Measurement(outcome=Outcome.INFRA_ERROR, stage="timing", device="cpu", error="no device")

    run = make_run(tasks=1, settings=CONFIRMING)
    search, _ = confirmed(run, down)
    best = search.population.best
    assert best is not None
    assert finished(run).confirmed is None
    assert finished(run).refuted == {}
    assert finished(run).speedups["eager_fp32"] == best.measurement.speedup()


def test_a_confirmed_run_that_is_started_again_measures_nothing(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    confirmed(run, slower)
    before = (run.path / "events.jsonl").read_bytes()
    _, evaluator = confirmed(run, slower)
    assert evaluator.again == []
    assert (run.path / "events.jsonl").read_bytes() == before


def test_the_header_of_a_winner_says_when_its_figures_were_taken(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=CONFIRMING)
    search, _ = confirmed(run, slower)
    best, again = search.population.best, search.confirmation.measurement
    assert best is not None
    assert again is not None
    text = winner_source("t", best, _Manifest(), again)  # type: ignore[arg-type]
    assert f"# speedup over eager_fp32: {again.speedup():.3f}" in text
    assert f"in the search it was {best.measurement.speedup():.3f} over the fastest baseline" in text
    assert "expect a little less" in winner_source("t", best, _Manifest())  # type: ignore[arg-type]
    assert "# doubt:" not in text
    shaken = replace(again, doubts=(Doubt(kind=DoubtKind.UNSTEADY, text="eager_fp32 took 1 to 800 us"),))
    assert "# doubt: eager_fp32 took 1 to 800 us" in winner_source("t", best, _Manifest(), shaken)  # type: ignore[arg-type]


class _Manifest:
    memory, arm, model, run_id = "", "feedback", "fake", "test"
