"""A recorded run of each arm after another system: built and measured on a CPU, replayed from its log.

The answers were written by hand in the forms that the prompts ask for, and are recorded as of the model
``hand-written``; choices, builds and measurements are real, of a busy two-core machine, so their times mean little.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.codec import decode
from artifacts.features.techniques import ABOUT, Technique, moves, techniques
from artifacts.measurement import Outcome
from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from artifacts.run_events import LoggedStep
from optimizer.run.opening import OpenRun
from optimizer.search.session import Session, Standing
from optimizer.search.task_search import Proposal

RECORDED = Path(__file__).parent / "arm_runs"
RUNS = sorted(path.name for path in RECORDED.iterdir())


def opened(name: str, folder: Path, memory: Memory) -> OpenRun:
    """A copy of the run, with the memory of these tests in place of the one that it pinned."""
    shutil.copytree(RECORDED / name, folder / "run")
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    if manifest["memory"]:
        published = MemoryStore(str(folder / "store")).publish(memory)
        manifest |= {"memory": f"{published.name}@{published.version}", "store": str(folder / "store")}
        (folder / "run" / "manifest.json").write_text(json.dumps(manifest))
    return OpenRun.at(folder / "run")


def advance(run: OpenRun) -> tuple[Session, Standing]:
    """Search again with nobody who could answer or measure."""

    async def session_of() -> tuple[Session, Standing]:
        session = Session(run.tasks, run.arm, run.settings(), run.effect_log)
        return session, await session.advance()

    return asyncio.run(session_of())


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_complete_without_anybody_s_help_and_its_log_stays_as_it_is(
    name: str, tmp_path: Path, memory: Memory
) -> None:
    run = opened(name, tmp_path, memory)
    before = (run.log.path / "events.jsonl").read_bytes()
    _, standing = advance(run)
    assert standing.complete
    assert not standing.open_requests
    assert (run.log.path / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", RUNS)
def test_its_answers_are_marked_as_recorded_and_its_candidates_were_measured(
    name: str, tmp_path: Path, memory: Memory
) -> None:
    run = opened(name, tmp_path, memory)
    answers = [payload for _, payload in run.effect_log.of_kind("answer")]
    assert {(payload["model"], payload["recorded"]) for payload in answers} == {("hand-written", True)}
    steps = [decode(LoggedStep, payload) for _, payload in run.effect_log.of_kind("step")]
    assert [step.measurement is not None for step in steps] == [True] * run.manifest.search.steps
    assert any(step.measurement and step.measurement.outcome is Outcome.CORRECT for step in steps)


def asked(run: OpenRun) -> list[tuple[str, ...]]:
    return [decode(Proposal, payload).choice.asked for _, payload in run.effect_log.of_kind("choice")]


def test_the_world_model_is_edited_once_and_the_second_intent_starts_from_the_program_of_the_first(
    tmp_path: Path, memory: Memory
) -> None:
    run = opened("world-model", tmp_path, memory)
    assert asked(run) == [("intents",), (), ()]
    session, _ = advance(run)
    assert [(intent.number, intent.under) for intent in session.searches[0].intents] == [(1, None), (2, 1)]


def test_the_planner_is_asked_before_each_candidate_and_the_coder_edits(tmp_path: Path, memory: Memory) -> None:
    run = opened("plan-code-debug", tmp_path, memory)
    assert asked(run) == [("plan",), ("plan",)]
    assert [payload.get("edited", False) for _, payload in run.effect_log.of_kind("candidate")] == [False, True]


def test_the_judge_optimizes_what_is_correct_and_corrects_what_failed(tmp_path: Path, memory: Memory) -> None:
    run = opened("hardware-feedback", tmp_path, memory)
    assert asked(run) == [(), ("judge_optimization",), ("judge_correction",)]
    choices = [decode(Proposal, payload).choice for _, payload in run.effect_log.of_kind("choice")]
    assert choices[2].instructions.startswith("issue: fast_exp returns p * two")


def test_experiments_are_designed_once_and_the_newest_the_boldest_and_the_safest_are_run(
    tmp_path: Path, memory: Memory
) -> None:
    run = opened("experiments", tmp_path, memory)
    assert asked(run) == [("design",), ()]
    session, _ = advance(run)
    intents = session.searches[0].intents
    assert [intent.tries for intent in intents] == [0, 1, 1, 0, 0]
    assert [bool(intent.closed) for intent in intents] == [True, False, False, True, False]


def test_an_objection_before_the_build_saved_a_candidate_that_would_not_have_compiled(
    tmp_path: Path, memory: Memory
) -> None:
    run = opened("verified-evolution", tmp_path, memory)
    keys = [key for key, _ in run.effect_log.of_kind("answer")]
    assert [key.rpartition("/")[2] for key in keys if "/1.0" in key] == [
        "1.0",
        "verify_compile",
        "verify_memory",
        "verify_numerics",
        "revised",
    ]
    steps = [decode(LoggedStep, payload) for _, payload in run.effect_log.of_kind("step")]
    assert all(step.measurement and step.measurement.outcome is not Outcome.COMPILE_ERROR for step in steps)


def test_the_bandit_takes_a_direction_of_its_memory_without_questions(tmp_path: Path, memory: Memory) -> None:
    run = opened("bandit", tmp_path, memory)
    assert asked(run) == [(), ()]
    choices = [decode(Proposal, payload).choice for _, payload in run.effect_log.of_kind("choice")]
    assert all(choice.direction and choice.probability for choice in choices)


def test_the_policy_orders_one_move_once_there_is_a_kernel_and_the_candidate_makes_it(
    tmp_path: Path, memory: Memory
) -> None:
    run = opened("macro", tmp_path, memory)
    first, second = [decode(Proposal, payload).choice for _, payload in run.effect_log.of_kind("choice")]
    assert "no kernel yet" in first.gate
    assert (second.move, second.instructions) == ("+polynomial", ABOUT[Technique.POLYNOMIAL].instruction)
    (_, request) = run.effect_log.of_kind("request")[1]
    assert second.instructions in request["messages"][1]["content"]
    steps = [decode(LoggedStep, payload) for _, payload in run.effect_log.of_kind("step")]
    before, after = (techniques(run.log.candidate(step.candidate_sha256), Language.CPP) for step in steps)
    assert second.move in moves(before, after)
