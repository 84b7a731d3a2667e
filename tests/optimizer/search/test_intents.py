"""A run whose model plans for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from artifacts.runlog import RunLog
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.search.settings import SearchSettings

IDEAS = [{"intent": "use a wider tile", "priority": 0.9}, {"intent": "fuse the bias", "priority": 0.4}]


class Planner:
    """Sends two ideas with its first answer and closes the first with its third."""

    def __init__(self) -> None:
        self.asked: list[LlmRequest] = []

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.asked.append(request)
        edits = {1: IDEAS, 3: [{"number": 1, "close": True}]}.get(len(self.asked), [])
        code = f"TAG = {len(self.asked) * 7}\n\nclass ModelNew:\n    pass"
        return LlmAnswer(text=f"PLAN: x\n```python\n{code}\n```\n```json\n{json.dumps(edits)}\n```", model="planner")

    async def close(self) -> None:
        pass


def sit(run: Any) -> None:
    journal = run.journal()
    asyncio.run(run.session(journal).advance())
    journal.log.close()


def planned(make_run: Callable[..., Any]) -> tuple[Any, list[str]]:
    run = make_run(tasks=1, settings=SearchSettings(steps=4, repairs=0), arm="world-model")
    run.model = Planner()
    sit(run)
    return run, [request.messages[-1].content for request in run.model.asked]


def chosen(run: Any) -> list[int | None]:
    events = [event.payload["choice"] for event in RunLog.open(run.path).events() if event.kind == "choice"]
    return [None if choice["intent"] is None else choice["intent"]["number"] for choice in events]


def test_the_first_prompt_asks_for_a_list_and_later_ones_for_one_of_its_intents(make_run: Callable[..., Any]) -> None:
    _, prompts = planned(make_run)
    assert "It is empty." in prompts[0]
    assert "1. use a wider tile" in prompts[1]
    assert "implement this one and no other" in prompts[1]
    assert "Choose the direction yourself" not in prompts[1]


def test_an_intent_is_stayed_with_until_the_model_closes_it(make_run: Callable[..., Any]) -> None:
    run, prompts = planned(make_run)
    assert chosen(run) == [None, 1, 1, 2]
    assert "closed: closed by the model" in prompts[3]


def test_a_planned_run_that_is_started_again_chooses_the_same(make_run: Callable[..., Any]) -> None:
    run, _ = planned(make_run)
    before = (run.path / "events.jsonl").read_bytes()
    sit(run)
    assert (run.path / "events.jsonl").read_bytes() == before
    assert len(run.model.asked) == 4


def test_other_arms_are_not_asked_for_intents(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=2))
    run.model = Planner()
    sit(run)
    assert not any("list of intents" in request.messages[-1].content for request in run.model.asked)
