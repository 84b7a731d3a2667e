"""Learn: what was measured becomes a logged step, a candidate of the population, and experience for later steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from artifacts.candidate import Candidate
from artifacts.codec import encode
from artifacts.features import code_features
from artifacts.measurement import Measurement, Outcome
from artifacts.memory.records import LONGEST_KERNEL, Transition
from artifacts.run_events import LoggedStep
from artifacts.trajectory import Provenance
from optimizer.arms.intents import tried
from optimizer.search.population import Node
from optimizer.search.task_search import Attempt, TaskSearch
from optimizer.tasks import Task


def learn(search: TaskSearch, attempts: Sequence[Attempt]) -> None:
    """Take in all candidates of one step."""
    found = [_learn_one(search, attempt) for attempt in attempts]
    search.learnt.append([transition for transition in found if transition is not None])


def transition_of(step: LoggedStep, task: Task, source: str, run: str) -> Transition | None:
    """The transition that a step with the candidate ``source`` adds to the overlay; None when it teaches nothing.

    Steps without a candidate and those that infrastructure failed say nothing. Steps without a direction say nothing of
    any direction, but in words what was done and what it gained.
    """
    measured = step.measurement
    if measured is None or not measured.outcome.charged_to_candidate:
        return None
    before = step.state.runtime_us
    if before is not None and measured.incumbent is not None:
        before = measured.incumbent.median_us  # the parent again, timed side by side with the child
    after = None if measured.timing is None else measured.timing.median_us
    timed = measured.outcome is Outcome.CORRECT and before is not None and after is not None
    shown = timed and max(len(source), len(task.source)) <= LONGEST_KERNEL
    ref = task.ref
    return Transition(
        transition_id=f"{run}/{ref.task_id}/{step.step_id}",
        source=run,
        trajectory_id=f"{run}/{ref.task_id}",
        task=ref,
        device=measured.device,
        llm=step.model,
        state=step.state,
        direction_id=step.direction,
        strategy_id=step.strategies[0] if step.strategies else "",
        plan=step.plan,
        outcome=measured.outcome,
        reward=math.log2(before / after) if timed and before is not None and after is not None else None,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"{run}/{ref.task_id}/{step.parent_id or 'reference'}",
        parent_sha256=step.parent_sha256,
        child_sha256=step.candidate_sha256,
        parent_us=before,
        child_us=after,
        error=measured.error[:500],
        choice_probability=step.choice_probability,
        provenance=Provenance(format="overlay", importer_version=1, file="events.jsonl", file_sha256=""),
        kernel=source if shown else "",
        reference=task.source if shown else "",
    )


def _learn_one(search: TaskSearch, attempt: Attempt) -> Transition | None:
    proposal, measurement = attempt.proposal, attempt.measurement
    if measurement is None:
        search.population.add_unusable(proposal.parent_id)
    else:
        search.population.add(_node(attempt, search.steps_done, measurement))
    if proposal.choice.intent is not None:
        made = None if measurement is None else search.population.node(proposal.slot)
        gain = None if made is None else search.population.gain(made)
        program = proposal.slot if attempt.improved else ""
        search.intents = tried(search.intents, proposal.choice.intent.number, program=program, gain=gain)
    step = _step(search, attempt)
    search.log.put("step", search.key(proposal.slot), encode(step))
    return transition_of(step, search.task, attempt.source, search.run.run)


def _step(search: TaskSearch, attempt: Attempt) -> LoggedStep:
    proposal, choice = attempt.proposal, attempt.proposal.choice
    parent, best = search.node(proposal.parent_id), search.population.best
    return LoggedStep(
        task_id=search.task_id,
        step_id=proposal.slot,
        parent_id=proposal.parent_id,
        incumbent_id=proposal.incumbent_id,
        best_id=None if best is None else best.step_id,
        index=search.steps_done,
        mode=proposal.mode,
        candidate_sha256=attempt.sha256,
        parent_sha256="" if parent is None else parent.sha256,
        direction=choice.direction,
        strategies=attempt.strategies,
        plan=attempt.words,
        shown=attempt.shown,
        state=proposal.state,
        measurement=attempt.measurement,
        error=attempt.error,
        choice_probability=choice.probability if choice.direction else None,
        explored=choice.explored,
        model=attempt.model,
    )


def _node(attempt: Attempt, index: int, measurement: Measurement) -> Node:
    proposal = attempt.proposal
    source = Candidate(attempt.source).source
    return Node(
        step_id=proposal.slot,
        parent_id=proposal.parent_id,
        index=index,
        mode=proposal.mode,
        source=source,
        sha256=attempt.sha256,
        plan=attempt.words,
        direction=proposal.choice.direction,
        intent=proposal.choice.intent,
        strategies=attempt.strategies,
        measurement=measurement,
        incumbent_id=proposal.incumbent_id,
        features=code_features(source).names,
    )
