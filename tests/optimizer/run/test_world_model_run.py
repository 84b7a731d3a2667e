"""A recorded run of the world-model arm: three real answers, built and measured on a CPU, replayed from its log.

The answers were written by hand in the form that the prompt asks for; nothing in the log is made up.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from artifacts.codec import decode
from artifacts.outcome import Outcome
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from optimizer.llm.intents import parse_intents
from optimizer.run.opening import OpenRun
from optimizer.search.plan import Plan
from optimizer.search.session import Session, Standing

RECORDED = Path(__file__).parent / "world_model_run"


@pytest.fixture
def run(tmp_path: Path) -> OpenRun:
    shutil.copytree(RECORDED, tmp_path / "run")
    return OpenRun.at(tmp_path / "run")


def advance(run: OpenRun) -> tuple[Session, Standing]:
    """Search again with nobody who could answer or measure."""

    async def sitting() -> tuple[Session, Standing]:
        session = Session(run.tasks, run.arm, run.settings(), run.journal)
        return session, await session.advance()

    return asyncio.run(sitting())


def test_the_run_is_complete_without_anybody_s_help_and_its_log_stays_as_it_is(run: OpenRun) -> None:
    before = (run.log.path / "events.jsonl").read_bytes()
    _, standing = advance(run)
    assert standing.complete
    assert not standing.open_requests
    assert (run.log.path / "events.jsonl").read_bytes() == before


def test_each_step_implements_the_most_promising_intent_of_the_list_as_it_was(run: OpenRun) -> None:
    choices = [decode(Plan, payload).choice for _, payload in run.journal.of_kind("choice")]
    assert choices[0].intent is None
    assert "no open intent" in choices[0].gate
    assert [choice.intent.number for choice in choices[1:] if choice.intent] == [1, 1]


def test_the_list_at_the_end_is_what_the_answers_made_of_it(run: OpenRun) -> None:
    session, _ = advance(run)
    closed = {intent.number: intent.closed for intent in session.searches[0].intents}
    assert closed == {1: "closed by the model", 2: "", 3: "closed by the model", 4: ""}
    assert [len(parse_intents(payload["text"])) for _, payload in run.journal.of_kind("answer")] == [3, 3, 2]


def test_what_was_written_was_built_and_measured(run: OpenRun) -> None:
    steps = [decode(LoggedStep, event.payload) for event in RunLog.open(run.log.path).events() if event.kind == "step"]
    outcomes = [step.measurement.outcome for step in steps if step.measurement]
    assert outcomes == [Outcome.CORRECT] * 3
    assert all(step.choice_probability is None for step in steps)
