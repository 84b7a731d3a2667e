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
    """Has two ideas when it is asked the first time."""

    def __init__(self) -> None:
        self.asked: list[LlmRequest] = []

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.asked.append(request)
        if request.purpose == "question":
            return LlmAnswer(text=f"```json\n{json.dumps(IDEAS)}\n```", model="planner")
        code = f"TAG = {len(self.asked) * 7}\n\nclass ModelNew:\n    pass"
        return LlmAnswer(text=f"PLAN: x\n```python\n{code}\n```", model="planner")

    async def close(self) -> None:
        pass


def sit(run: Any) -> None:
    log = run.effect_log()
    asyncio.run(run.session(log).advance())
    log.log.close()


def planned(make_run: Callable[..., Any]) -> tuple[Any, dict[str, str]]:
    run = make_run(tasks=1, settings=SearchSettings(steps=4, repairs=0), arm="world-model")
    run.model = Planner()
    sit(run)
    return run, {request.slot: request.messages[-1].content for request in run.model.asked}


def chosen(run: Any) -> list[int | None]:
    events = [event.payload["choice"] for event in RunLog.open(run.path).events() if event.kind == "choice"]
    return [None if choice["intent"] is None else choice["intent"]["number"] for choice in events]


def test_the_tree_is_asked_for_first_and_each_candidate_implements_one_of_its_intents(
    make_run: Callable[..., Any],
) -> None:
    run, prompts = planned(make_run)
    assert list(prompts)[:2] == ["0.0.intents", "0.0"]
    assert "It is empty." in prompts["0.0.intents"]
    assert "1. use a wider tile" in prompts["0.0"]
    assert "implement this one and no other" in prompts["0.0"]
    assert "Choose the direction yourself" not in prompts["1.0"]
    assert chosen(run)[0] == 1


def test_an_intent_is_stayed_with_and_the_tree_left_alone_while_it_is_open(make_run: Callable[..., Any]) -> None:
    run, prompts = planned(make_run)
    assert chosen(run) == [1, 1, 1, 1]
    assert [slot for slot in prompts if slot.endswith("intents")] == ["0.0.intents"]


def test_a_planned_run_that_is_started_again_chooses_the_same(make_run: Callable[..., Any]) -> None:
    run, _ = planned(make_run)
    before = (run.path / "events.jsonl").read_bytes()
    sit(run)
    assert (run.path / "events.jsonl").read_bytes() == before
    assert len(run.model.asked) == 5


def test_other_arms_are_not_asked_for_intents(make_run: Callable[..., Any]) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=2))
    run.model = Planner()
    sit(run)
    assert not any("tree of intents" in request.messages[-1].content for request in run.model.asked)
