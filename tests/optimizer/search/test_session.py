from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome
from artifacts.runlog import RunLog
from optimizer.llm.protocol import LlmAnswer, LlmRequest, Message
from optimizer.search.effects import Effects
from optimizer.search.settings import SearchSettings


def advance(run: Any, *, files: bool = False) -> Any:
    log = run.effect_log()
    try:
        return asyncio.run(run.session(log, files=files).advance())
    finally:
        log.log.close()


def content(run: Any) -> dict[tuple[str, str], Any]:
    """The log without what depends on the clock and on who was faster."""
    return {(event.kind, event.key): event.payload for event in RunLog.open(run.path).events()}


def test_a_run_does_all_steps_of_all_tasks(make_run: Callable[..., Any]) -> None:
    run = make_run()
    standing = advance(run)
    steps = Counter(key.rsplit("/", 1)[0] for kind, key in content(run) if kind == "step")
    assert standing.complete
    assert sum(steps.values()) == 16
    assert min(steps.values()) >= 6


def test_no_more_questions_are_under_way_than_allowed(make_run: Callable[..., Any]) -> None:
    run = make_run()
    under_way, most = 0, 0

    async def slow(request: LlmRequest) -> LlmAnswer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return LlmAnswer(text="I see.", model="fake")

    async def all_at_once() -> None:
        run.model.complete = slow
        log = run.effect_log()
        effects = Effects(log, llm=run.model, evaluations=None, at_once=4)
        question = LlmRequest(model="fake", messages=(Message(role="user", content="why?"),))
        await asyncio.gather(*(effects.ask(str(number), question) for number in range(24)))
        log.log.close()

    asyncio.run(all_at_once())
    assert most == 4


def test_a_finished_run_that_is_started_again_pays_for_nothing(make_run: Callable[..., Any]) -> None:
    run = make_run()
    advance(run)
    asked, measured = len(run.model.asked), len(run.evaluator.measured)
    before = (run.path / "events.jsonl").read_bytes()
    assert advance(run).complete
    assert (len(run.model.asked), len(run.evaluator.measured)) == (asked, measured)
    assert (run.path / "events.jsonl").read_bytes() == before


def test_a_run_through_files_equals_the_run_in_one_go(make_run: Callable[..., Any]) -> None:
    settings = SearchSettings(steps=4, candidates=2, confirm=True)
    direct, through_files = make_run("direct", settings=settings), make_run("files", settings=settings)
    advance(direct)
    for _ in range(100):
        standing = advance(through_files, files=True)
        if standing.complete:
            break
        log = through_files.effect_log()
        for key, request in standing.open_requests.items():
            log.put("answer", key, encode(asyncio.run(through_files.model.complete(request))))
        for key, job in standing.open_jobs.items():
            ((_, measurement),) = through_files.evaluate([job])
            log.put("measurement", key, encode(measurement))
        log.log.close()
    assert content(through_files) == content(direct)


def test_a_whole_step_of_all_tasks_is_open_at_once(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=3, settings=SearchSettings(steps=2, candidates=2))
    references = advance(run, files=True).open_jobs
    log = run.effect_log()
    for key, (_, measurement) in zip(references, run.evaluate(references.values()), strict=True):
        log.put("measurement", key, encode(measurement))
    log.log.close()
    assert len(advance(run, files=True).open_requests) == 6


def broken_reference(run: Any, task: str, outcome: Outcome = Outcome.RUNTIME_ERROR) -> list[str]:
    """Let the reference of one task fail; the list gets the ids of the jobs that were measured."""
    original, measured = run.evaluate, []

    def evaluate(jobs: Any) -> Any:
        for job in jobs:
            measured.append(job.job_id)
            if job.job_id == f"test/-/{task}/reference":
                yield job.job_id, Measurement(outcome=outcome, stage="task", device="cpu", error="no such operator")
            else:
                yield from original([job])

    run.evaluate = evaluate
    return measured


def test_a_task_whose_reference_fails_costs_no_answer_and_the_others_are_finished(make_run: Callable[..., Any]) -> None:
    run = make_run()
    broken_reference(run, "task_0")
    standing = advance(run)
    assert standing.complete
    assert standing.unusable == {"test/-/task_0": "no such operator"}
    assert [finished.task_id for finished in standing.finished] == ["test/-/task_1"]
    assert {key.split("/")[2] for kind, key in content(run) if kind == "request"} == {"task_1"}


def test_what_is_known_of_a_reference_is_not_asked_again(make_run: Callable[..., Any]) -> None:
    run = make_run()
    measured = broken_reference(run, "task_0")
    advance(run)
    taken = len(measured)
    assert advance(run).unusable
    assert len(measured) == taken


def test_a_host_that_fails_says_nothing_about_a_reference(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.search.effects.INFRASTRUCTURE_RETRIES", 0)
    run = make_run()
    run_again = run.evaluate
    broken_reference(run, "task_0", Outcome.INFRA_ERROR)
    assert set(advance(run).unusable) == {"test/-/task_0"}
    run.evaluate = run_again
    standing = advance(run)
    assert (standing.unusable, len(standing.finished)) == ({}, 2)


def test_a_run_that_began_without_looking_at_references_goes_on(make_run: Callable[..., Any]) -> None:
    run = make_run()
    advance(run)
    log = RunLog.open(run.path)
    events = [event for event in log.events() if not event.key.endswith("/reference") and event.kind != "task_finished"]
    (run.path / "events.jsonl").unlink()
    for event in events:
        log.append(event.kind, event.payload, key=event.key)
    log.close()
    measured = broken_reference(run, "task_0")
    assert len(advance(run).finished) == 2
    assert measured == []


def test_no_prompt_shows_a_hidden_input_setting(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1)
    hidden = "def get_hidden_input_sets():\n    return [[4711]]\n"
    run.tasks = [replace(task, source=task.source + hidden) for task in run.tasks]
    advance(run)
    requests = [str(payload) for (kind, _), payload in content(run).items() if kind == "request"]
    assert requests
    assert not any("4711" in request for request in requests)


def test_a_step_that_repeats_a_candidate_is_not_measured_again(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=3, candidates=1))

    async def same(_: Any) -> Any:
        from optimizer.llm.protocol import LlmAnswer

        return LlmAnswer(text="```python\nclass ModelNew:\n    x = 1\n```", model="fake")

    run.model.complete = same
    advance(run)
    errors = [payload["error"] for (kind, _), payload in content(run).items() if kind == "step"]
    assert len(run.evaluator.measured) == 1
    assert errors[1:] == ["the answer repeats step 0.0"] * 2
