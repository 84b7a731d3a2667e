"""Who gets the steps that may move between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optimizer.search.session import MOST, next_wave, sure_steps
from optimizer.search.settings import SearchSettings


@dataclass
class Task:
    """A claimant that gains where it should."""

    gains: tuple[bool, ...]
    steps_done: int = 0
    fruitless: int = 0

    def step(self) -> None:
        gained = self.gains[self.steps_done % len(self.gains)]
        self.fruitless = 0 if gained else self.fruitless + 1
        self.steps_done += 1


def played(tasks: list[Task], steps: int) -> list[int]:
    for task in tasks:
        for _ in range(sure_steps(steps)):
            task.step()
    while wave := next_wave(tasks, steps * len(tasks) - sum(task.steps_done for task in tasks), steps):
        for task in wave:
            task.step()
    return [task.steps_done for task in tasks]


suites = st.lists(st.lists(st.booleans(), min_size=1, max_size=5).map(tuple), min_size=1, max_size=9)


@given(suites, st.integers(1, 12))
def test_all_steps_of_a_suite_are_used_and_none_twice(gains: list[tuple[bool, ...]], steps: int) -> None:
    done = played([Task(item) for item in gains], steps)
    assert sum(done) == steps * len(gains)
    assert all(sure_steps(steps) <= one <= MOST * steps for one in done)


def test_a_task_that_still_improves_gets_what_others_leave() -> None:
    assert played([Task((False,)), Task((True,)), Task((False,))], 6) == [4, 10, 4]


def test_equal_tasks_share_alike() -> None:
    assert played([Task((False,)) for _ in range(4)], 6) == [6, 6, 6, 6]


def test_no_task_takes_more_than_twice_its_share() -> None:
    eager = Task((True,), steps_done=12)
    assert next_wave([eager], left=5, steps=6) == []
    assert next_wave([eager], left=5, steps=7) == [eager]


def test_the_steps_of_a_run_move_to_the_task_that_improves(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=3, settings=SearchSettings(steps=6, candidates=1, repairs=0, near_bound=1.0))
    original = run.evaluator.evaluate

    def one_improves(jobs: Any) -> Any:
        for job in jobs:
            ((job_id, found),) = original([replace(job, candidate_source="class ModelNew: 1")])
            faster = "task_1" in job_id
            incumbent = found.timing if job.incumbent_source else None
            timing = replace(found.timing, median_us=5.0, low_us=4.9, high_us=5.1) if faster else found.timing
            yield job_id, replace(found, timing=timing, incumbent=incumbent, faster_than_incumbent=faster)

    run.evaluator.evaluate = one_improves
    log = run.effect_log()
    finished = asyncio.run(run.session(log).advance()).finished
    log.log.close()
    assert [task.steps for task in finished] == [4, 10, 4]
