"""Verdicts on a candidate before it is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from artifacts.runlog import RunLog
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.search.settings import SearchSettings


class Author:
    """Writes one file, another when somebody objects; reviewers say what they are told to."""

    def __init__(self, verdict: str) -> None:
        self.verdict = verdict
        self.slots: list[str] = []

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.slots.append(request.slot)
        if request.purpose == "question":
            said = self.verdict if request.slot.endswith("numerics") else '{"verdict": "pass"}'
            return LlmAnswer(text=f"```json\n{said}\n```", model="author")
        tag = 2 if request.slot.endswith("revised") else 1
        return LlmAnswer(text=f"PLAN: x\n```python\nTAG = {tag}\n\nclass ModelNew:\n    pass\n```", model="author")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("verdict", "tag", "calls"),
    [
        ('{"verdict": "pass"}', "TAG = 1", 4),
        ('{"verdict": "fail", "reason": "the sum overflows"}', "TAG = 2", 5),
        ("nonsense", "TAG = 1", 4),
    ],
)
def test_an_objection_gives_the_author_one_chance_to_answer_again(
    verdict: str, tag: str, calls: int, make_run: Callable[..., Any]
) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=1), arm="verified-evolution")
    run.model = Author(verdict)
    log = run.effect_log()
    asyncio.run(run.session(log).advance())
    log.log.close()
    events = {(event.kind, event.key): event.payload for event in RunLog.open(run.path).events()}
    sha256 = events["candidate", "test/-/task_0/0.0"]["sha256"]
    assert tag in RunLog.open(run.path).candidate(sha256)
    assert len(run.model.slots) == calls
    asked = events.get(("request", "test/-/task_0/0.0/revised"))
    assert asked is None or "the sum overflows" in asked["messages"][-1]["content"]
