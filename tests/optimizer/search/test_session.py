from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from artifacts.codec import encode
from artifacts.runlog import RunLog
from optimizer.search.settings import SearchSettings


def advance(run: Any, *, files: bool = False) -> Any:
    journal = run.journal()
    try:
        return asyncio.run(run.session(journal, files=files).advance())
    finally:
        journal.log.close()


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
        journal = through_files.journal()
        for key, request in standing.open_requests.items():
            journal.put("answer", key, encode(asyncio.run(through_files.model.complete(request))))
        for key, job in standing.open_jobs.items():
            ((_, measurement),) = through_files.evaluator.evaluate([job])
            journal.put("measurement", key, encode(measurement))
        journal.log.close()
    assert content(through_files) == content(direct)


def test_a_whole_step_of_all_tasks_is_open_at_once(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=3, settings=SearchSettings(steps=2, candidates=2))
    assert len(advance(run, files=True).open_requests) == 6


def test_a_step_that_repeats_a_candidate_is_not_measured_again(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=3, candidates=1))

    async def same(_: Any) -> Any:
        from optimizer.llm.protocol import LlmAnswer

        return LlmAnswer(text="```python\nclass ModelNew:\n    x = 1\n```", model="fake")

    run.model.complete = same
    advance(run)
    errors = [payload["error"] for (kind, _), payload in content(run).items() if kind == "step"]
    assert len(run.evaluator.measured) == 1
    assert errors[1:] == ["the answer repeats the candidate of step 0.0"] * 2


def test_sharing_experience_gives_the_same_run_whoever_is_faster(make_run: Callable[..., Any]) -> None:
    settings = SearchSettings(steps=3, candidates=1, shared=True)
    first, second = make_run("one", tasks=3, settings=settings), make_run("two", tasks=3, settings=settings)
    advance(first)
    complete = second.model.complete

    async def slow(request: Any) -> Any:
        await asyncio.sleep(0.02 if "task_0" in request.task else 0)
        return await complete(request)

    second.model.complete = slow
    advance(second)
    assert content(second) == content(first)
