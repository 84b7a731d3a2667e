"""What the search gives to the prompt of a step, and what the log keeps of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from artifacts.codec import decode
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep
from artifacts.trajectory import State
from optimizer.arms import Choice
from optimizer.search.population import Node
from optimizer.search.settings import SearchSettings
from optimizer.search.task_search import Proposal
from optimizer.search.write import prompt_context


def tried(step_id: str, parent: str | None, *, correct: bool = True) -> Node:
    time = Timing(median_us=10.0, low_us=10.0, high_us=10.0)
    measured = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="off")
    if correct:
        measured = Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=time)
    return Node(
        step_id=step_id,
        parent_id=parent,
        index=int(step_id[0]),
        mode="optimize",
        source=f"source of {step_id}",
        sha256=step_id,
        plan=f"plan of {step_id}",
        direction="",
        strategies=(),
        measurement=measured,
    )


@pytest.mark.parametrize(
    ("parent", "shown"),
    [
        ("1.0", {"plan of 0.0": True, "plan of 1.0": True, "plan of 2.0": False, "plan of 3.0": False}),
        ("3.0", {"plan of 0.0": True, "plan of 1.0": True, "plan of 2.0": False}),
    ],
)
def test_tries_are_shown_with_whether_they_are_part_of_the_candidate(
    parent: str, shown: dict[str, bool], softmax_state: State, make_run: Callable[..., Any]
) -> None:
    run = make_run(tasks=1)
    log = run.effect_log()
    (search,) = run.session(log).searches
    for node in (tried("0.0", None), tried("1.0", "0.0"), tried("2.0", "0.0"), tried("3.0", "1.0", correct=False)):
        search.population.add(node)
    choice = Choice(arm="feedback")
    proposal = Proposal(
        slot="4.0", mode="optimize", parent_id=parent, incumbent_id=None, state=softmax_state, choice=choice
    )
    found = prompt_context(search, proposal)
    log.log.close()
    assert {attempt.plan: attempt.kept for attempt in found.tried} == shown


def test_a_step_is_logged_with_its_incumbent_what_it_was_shown_and_the_best_after_it(
    make_run: Callable[..., Any],
) -> None:
    run = make_run(tasks=1, settings=SearchSettings(steps=6, candidates=2))
    log = run.effect_log()
    (search,) = (session := run.session(log)).searches
    asyncio.run(session.advance())
    steps = [decode(LoggedStep, payload) for _, payload in log.of_kind("step")]
    log.log.close()
    assert steps[-1].best_id == search.population.best.step_id
    timed = [step for step in steps if step.measurement is not None and step.measurement.incumbent is not None]
    assert timed
    for step in timed:
        incumbent = search.population.node(step.incumbent_id)
        assert incumbent.index < step.index
        assert (run.path / "candidates" / f"{incumbent.sha256}.py").exists()
    later = [step for step in steps if step.mode == "optimize"]
    assert all(step.parent_id in step.shown["tried before"] for step in later)
