"""The loop with a memory, repairs and declared constants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from artifacts.measurement import Measurement, Outcome
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.runlog import RunLog
from optimizer.arms import Arm, make_arm
from optimizer.llm.budget import Budget, BudgetLimits
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.prompting.fixes import KnownFixes
from optimizer.search.settings import SearchSettings
from optimizer.selection import SelectionSettings
from optimizer.tuning import TuningSettings

ONE_TASK = {"tasks": 1, "settings": SearchSettings(steps=3, candidates=1)}


def payloads(run: Any, kind: str) -> dict[str, Mapping[str, Any]]:
    return {event.key: event.payload for event in RunLog.open(run.path).events() if event.kind == kind}


def advance(run: Any, **session: Any) -> Any:
    log = run.effect_log()
    try:
        return asyncio.run(run.session(log, **session).advance())
    finally:
        log.log.close()


def asked(run: Any) -> list[LlmRequest]:
    """Makes the fake model keep what it is asked."""
    requests: list[LlmRequest] = []
    complete = run.model.complete

    async def keep(request: LlmRequest) -> LlmAnswer:
        requests.append(request)
        answer: LlmAnswer = await complete(request)
        return answer

    run.model.complete = keep
    return requests


def test_the_chosen_direction_and_its_strategies_reach_prompt_and_log(
    make_run: Callable[..., Any], memory: Memory
) -> None:
    run = make_run(arm=make_arm("htam", memory, SelectionSettings(explore=0.0, least_margin=0.0)), **ONE_TASK)
    requests = asked(run)
    advance(run)
    choice = payloads(run, "choice")["test/-/task_0/0.0"]["choice"]
    assert choice["direction"]
    direction = memory.direction(choice["direction"])
    assert direction.description in requests[0].messages[-1].content
    assert choice["strategies"][0]["strategy_id"] in requests[0].messages[-1].content
    assert choice["probability"] == 1.0
    assert {score["direction_id"] for score in choice["scores"]} == {"access", "fusion", "tiling"}


def test_a_closed_gate_gives_no_direction_and_says_why(make_run: Callable[..., Any], memory: Memory) -> None:
    run = make_run(arm=make_arm("htam", memory, SelectionSettings(explore=0.0, least_evidence=1e9)), **ONE_TASK)
    requests = asked(run)
    advance(run)
    assert "no direction" in payloads(run, "choice")["test/-/task_0/0.0"]["choice"]["gate"]
    assert "recipe of" not in requests[0].messages[-1].content
    assert payloads(run, "step")["test/-/task_0/0.0"]["choice_probability"] is None


def test_what_a_run_learns_is_seen_by_its_next_step(make_run: Callable[..., Any], memory: Memory) -> None:
    seen: list[int] = []
    arm = make_arm("htam", memory, SelectionSettings(explore=0.0, least_margin=0.0))

    class Watched(Arm):
        def choose(self, context: Any) -> Any:
            seen.append(len(context.overlay))
            return arm.choose(context)

    advance(
        make_run(
            arm=Watched(name="htam", memory=memory),
            tasks=1,
            settings=SearchSettings(steps=6, candidates=1),
        )
    )
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] > 0


def cured(memory: Memory) -> Memory:
    """The memory with one failure that the next step cured."""
    like: Transition = next(iter(memory.transitions()))
    failed = replace(
        like,
        transition_id="x/1",
        outcome=Outcome.COMPILE_ERROR,
        reward=None,
        child_us=None,
        child_sha256="f" * 64,
        error="error: identifier shared_tile is undefined",
    )
    fix = replace(
        like, transition_id="x/2", outcome=Outcome.CORRECT, parent_sha256="f" * 64, plan="declare the tile first"
    )
    return replace(memory, table=transition_rows([*memory.transitions(), failed, fix]))


def test_a_similar_failure_finds_its_cure_and_another_does_not(memory: Memory) -> None:
    book = KnownFixes(cured(memory))
    (found,) = book.like(Outcome.COMPILE_ERROR, "kernel.cu(7): error: identifier big_tile is undefined")
    assert found.cure == "declare the tile first"
    assert book.like(Outcome.COMPILE_ERROR, "out of registers in stage two") == ()
    assert book.like(Outcome.TIMEOUT, "error: identifier shared_tile is undefined") == ()


def test_a_repair_shows_what_cured_such_failures(make_run: Callable[..., Any], memory: Memory) -> None:
    run = make_run(arm=make_arm("htam", cured(memory), SelectionSettings()), **ONE_TASK)
    requests = asked(run)

    def failing(jobs: Any) -> Any:
        for job in jobs:
            text = "error: identifier other_tile is undefined"
            yield job.job_id, Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error=text)

    run.evaluator.evaluate = failing
    advance(run)
    repairs = [request for request in requests if request.purpose == "repair"]
    assert repairs
    assert all("declare the tile first" in request.messages[-1].content for request in repairs)


TUNABLE = """PLAN: tile it
```python
import torch
BLOCK = 64
TUNABLES = {"BLOCK": [64, 128, 256]}

class ModelNew(torch.nn.Module):
    pass
```"""


@pytest.mark.parametrize("files", [False, True])
def test_declared_constants_are_searched_and_the_best_becomes_a_step(files: bool, make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=1, candidates=1))
    run.tuning = TuningSettings()

    async def answer(_: LlmRequest) -> LlmAnswer:
        return LlmAnswer(text=TUNABLE, model="fake")

    times = {"BLOCK = 64": 50.0, "BLOCK = 128": 20.0, "BLOCK = 256": 60.0}
    original = run.evaluator.evaluate

    def measured(jobs: Any) -> Any:
        for job in jobs:
            ((_, found),) = original([replace(job, candidate_source="class ModelNew: 1")])
            us = next(value for text, value in times.items() if text in job.candidate_source)
            timing = replace(found.timing, median_us=us, low_us=us, high_us=us)
            yield (
                job.job_id,
                replace(found, timing=timing, faster_than_incumbent=us < 50 if job.incumbent_source else None),
            )

    run.model.complete, run.evaluator.evaluate = answer, measured
    standing = advance(run)
    if files:  # a second session replays the search of constants from the log
        before = (run.path / "events.jsonl").read_bytes()
        standing = advance(run)
        assert (run.path / "events.jsonl").read_bytes() == before
    step = payloads(run, "step")["test/-/task_0/1.0"]
    assert (step["mode"], step["parent_id"]) == ("tune", "0.0")
    assert step["plan"] == "set BLOCK=128, the best of 3 measured settings"
    assert standing.finished[0].best_step == "1.0"


def test_a_used_up_budget_stops_the_run_and_a_larger_one_finishes_it(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=2)
    original = run.evaluator.evaluate

    def dear(jobs: Any) -> Any:
        for job_id, measurement in original(jobs):
            yield job_id, replace(measurement, gpu_s=10.0)

    run.evaluator.evaluate = dear
    stopped = advance(run, budget=Budget(BudgetLimits(gpu_s=25.0)))
    assert "GPU seconds is used up" in str(stopped.problem)
    measured = len(payloads(run, "measurement"))
    assert 3 <= measured < 16
    assert advance(run).complete
    assert len(run.evaluator.measured) == len(set(run.evaluator.measured))


def test_a_host_that_fails_once_is_asked_again_and_the_candidate_not_blamed(make_run: Callable[..., Any]) -> None:
    run = make_run(**ONE_TASK)
    original, failed = run.evaluator.evaluate, set()

    def flaky(jobs: Any) -> Any:
        for job in jobs:
            if job.job_id not in failed:
                failed.add(job.job_id)
                text = Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device="cpu", error="gone")
                yield job.job_id, text
            else:
                yield from original([job])

    run.evaluator.evaluate = flaky
    advance(run)
    assert all(item["outcome"] != "infra_error" for item in payloads(run, "measurement").values())


def test_a_task_near_its_bound_leaves_its_steps_to_the_others(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=2, settings=SearchSettings(steps=3, candidates=1, near_bound=0.9))
    original = run.evaluator.evaluate

    def done_at_once(jobs: Any) -> Any:
        for job in jobs:
            ((job_id, found),) = original([replace(job, candidate_source="class ModelNew: 1")])
            fraction = 0.95 if "task_0" in job.task_id else 0.2
            yield job_id, replace(found, profile=replace(found.profile, fraction_of_bound=fraction))

    run.evaluator.evaluate = done_at_once
    first, second = advance(run).finished
    assert (first.steps, second.steps) == (1, 5)
    assert first.reason.startswith("near the bound: 95%")


def test_with_fixed_steps_a_task_near_its_bound_takes_all_of_them(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=2, settings=SearchSettings(steps=3, candidates=1, reallocate=False))
    original = run.evaluator.evaluate

    def near_the_bound(jobs: Any) -> Any:
        for job_id, found in original(jobs):
            yield (
                job_id,
                found
                if found.profile is None
                else replace(found, profile=replace(found.profile, fraction_of_bound=0.95)),
            )

    run.evaluator.evaluate = near_the_bound
    assert [finished.steps for finished in advance(run).finished] == [3, 3]


def test_a_task_near_its_bound_after_its_last_sure_step_is_logged_as_such(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=2, settings=SearchSettings(steps=3, candidates=1, near_bound=0.9))
    original = run.evaluator.evaluate

    def done_with_the_second_step(jobs: Any) -> Any:
        for job in jobs:
            ((job_id, found),) = original([replace(job, candidate_source="class ModelNew: 1")])
            near = job.job_id == "test/-/task_0/1.0"
            profile = replace(found.profile, fraction_of_bound=0.95 if near else 0.2)
            timing = replace(found.timing, median_us=5.0, low_us=4.9, high_us=5.1) if near else found.timing
            yield job_id, replace(found, profile=profile, timing=timing, incumbent=None, faster_than_incumbent=None)

    run.evaluator.evaluate = done_with_the_second_step
    finished = advance(run).finished[0]
    assert finished.steps == 2
    assert finished.reason.startswith("near the bound: 95%")


@pytest.mark.parametrize("candidates", [1, 2])
def test_a_failure_whose_repairs_are_no_answers_is_given_up_like_any_other(
    candidates: int, make_run: Callable[..., Any]
) -> None:
    settings = SearchSettings(steps=7, candidates=candidates, repairs=2, reallocate=False)
    run = make_run(tasks=1, settings=settings)
    complete, original = run.model.complete, run.evaluator.evaluate

    async def no_code_for_repairs(request: LlmRequest) -> LlmAnswer:
        if request.purpose in ("repair", "answer_repair"):
            return LlmAnswer(text="I cannot.", model="fake")
        answer: LlmAnswer = await complete(replace(request, purpose="answer_repair"))
        return answer

    def fails_once(jobs: Any) -> Any:
        for job in jobs:
            if job.job_id.split("/")[-1].startswith("1."):
                failed = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error="no such name")
                yield job.job_id, failed
            else:
                yield from original([replace(job, candidate_source="class ModelNew: 1")])

    run.model.complete, run.evaluator.evaluate = no_code_for_repairs, fails_once
    advance(run)
    modes = [payload["mode"] for payload in payloads(run, "step").values()]
    assert modes[candidates * 2 : candidates * 4] == ["repair"] * 2 * candidates
    assert modes[candidates * 4 :] == ["optimize"] * 3 * candidates
