"""What every kind of arm keeps while it searches: it resumes anywhere, pays once, and says the same again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.codec import decode
from artifacts.errors import BudgetExceededError
from artifacts.memory.htg import Memory
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from optimizer.arms import ARMS, Arm, make_arm
from optimizer.llm.budget import Budget, BudgetLimits, spent_on
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.search.settings import SearchSettings
from optimizer.selection import SelectionSettings

SETTINGS = SearchSettings(steps=3, candidates=2, repairs=1)
ROLES = {
    "plan": "GOAL: wider\nANCHOR: TAG\nDO: widen it",
    "judge_correction": {"issue": "a name", "why": "typo", "fix": "spell it"},
    "judge_optimization": {"bottleneck": "memory", "counters": "none", "change": "fuse"},
    "select": {"base": "0.1", "why": "room"},
    "design": [{"intent": "try {n}", "low": 0.9, "high": 1.5, "priority": 0.4}, {"intent": "also", "high": 1.1}],
    "verify_compile": {"verdict": "fail", "reason": "no semicolon in line {n}"},
    "verify_memory": {"verdict": "pass"},
    "intents": [
        {"intent": "fuse {n}", "priority": 0.6},
        {"intent": "tile {n}", "under": 1},
        {"number": 2, "close": True},
    ],
}
"""What roles answer; a role that is not here gets prose."""


class Player:
    """Plays every role: candidates as the request's hash has them, one of eight useless, edits where they fit."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.asked: list[LlmRequest] = []
        self._budget = budget

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.asked.append(request)
        answer = LlmAnswer(text=self._text(request), model="player", prompt_tokens=10)
        if self._budget is not None:
            self._budget.check(spent_on(answer))
            self._budget.add(spent_on(answer))
        return answer

    def _text(self, request: LlmRequest) -> str:
        number = int(hashlib.sha256(request.key.encode()).hexdigest()[:8], 16)
        if request.purpose == "question":
            said = ROLES.get(request.slot.rpartition(".")[2], "I see.")
            text = said if isinstance(said, str) else f"```json\n{json.dumps(said)}\n```"
            return text.replace("{n}", str(number % 7))
        if number % 8 == 0 and request.purpose != "answer_repair":
            return "I would rather not."
        if "<<<<<<< SEARCH" in request.messages[0].content and number % 3:
            return f"PLAN: edit\n<<<<<<< SEARCH\nimport torch\n=======\nimport torch\nN{number} = 1\n>>>>>>> REPLACE"
        code = f"import torch\nTAG = {number}\n\nclass ModelNew(torch.nn.Module):\n    pass"
        return f"PLAN: {number}\n```python\n{code}\n```"


LIKE_HTAM = (
    *(
        "no-local",
        "attention",
        "no-prefix",
        "uniform",
        "frozen",
        "shuffled",
        "random",
        "kernel-only",
        "experience-only",
    ),
)
"""The same class under other settings, or with another memory: they choose otherwise and search alike."""
KINDS = [name for name in ARMS if name not in LIKE_HTAM]


@pytest.fixture(
    params=[(name, "file") for name in KINDS] + [("feedback", "edits"), ("plan-code-debug", "edits")], ids="-".join
)
def new_run(
    request: pytest.FixtureRequest, make_run: Callable[..., Any], memory: Memory, memory_of_moves: Memory
) -> Callable[[str], Any]:
    name, answers = request.param

    def make(path: str, arm: Arm | None = None) -> Any:
        if arm is None:
            arm = make_arm(name, memory_of_moves if name == "macro" else memory, SelectionSettings(least_margin=0.0))
        run = make_run(path, tasks=1, settings=SETTINGS, arm=arm)
        session = run.session

        def with_answers(log: Any, **options: Any) -> Any:
            found = session(log, **options)
            for search in found.searches:
                search.run = replace(search.run, prompt=replace(search.run.prompt, answers=answers))
            return found

        run.session, run.model = with_answers, Player()
        return run

    return make


def sit(run: Any, budget: Budget | None = None) -> Any:
    log = run.effect_log()
    try:
        return asyncio.run(run.session(log, budget=budget).advance())
    finally:
        log.log.close()


def events(path: Path) -> list[tuple[str, str, Any]]:
    return [(event.kind, event.key, event.payload) for event in RunLog.open(path).events()]


def test_a_run_cut_after_any_event_ends_like_one_that_was_not(new_run: Callable[..., Any]) -> None:
    whole, other = new_run("whole"), new_run("other").arm
    assert sit(whole).complete
    every = events(whole.path)
    lines = (whole.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    for cut in range(len(every)):
        part = new_run(f"cut_{cut}", other)
        shutil.copytree(whole.path, part.path)
        (part.path / "events.jsonl").write_bytes(b"".join(lines[:cut]))
        sit(part)
        assert sorted(events(part.path), key=str) == sorted(every, key=str)
        known = sum(kind == "answer" for kind, _, _ in every[:cut])
        assert len(part.model.asked) == sum(kind == "answer" for kind, _, _ in every) - known


def test_every_question_counts_against_the_budget_and_is_paid_once(new_run: Callable[[str], Any]) -> None:
    whole, tight = new_run("whole"), new_run("tight")
    sit(whole)
    calls = sum(kind == "answer" for kind, _, _ in events(whole.path))
    assert calls == len(whole.model.asked)
    limit = calls - 2
    budget = Budget(BudgetLimits(calls=limit))
    tight.model = Player(budget)
    standing = sit(tight, budget)
    assert isinstance(standing.problem, BudgetExceededError)
    assert sum(kind == "answer" for kind, _, _ in events(tight.path)) == limit
    tight.model = Player()
    assert sit(tight).complete
    assert len(tight.model.asked) == 2
    assert sorted(events(tight.path), key=str) == sorted(events(whole.path), key=str)


def test_every_step_is_taken_and_its_questions_are_in_the_log(new_run: Callable[[str], Any]) -> None:
    run = new_run("run")
    sit(run)
    log = {(kind, key): payload for kind, key, payload in events(run.path)}
    steps = [decode(LoggedStep, payload) for (kind, _), payload in log.items() if kind == "step"]
    assert len(steps) == SETTINGS.steps * SETTINGS.candidates
    for step in steps:
        key = f"{step.task_id}/{step.step_id}"
        for role in log["choice", key]["choice"]["asked"]:
            assert log["request", f"{key}/{role}"]["purpose"] == "question"
            assert log["answer", f"{key}/{role}"]["text"]
