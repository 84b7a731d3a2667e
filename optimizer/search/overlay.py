"""What a run learns while it runs: logged steps as transitions, beside the memory and never in it."""

from __future__ import annotations

import math

from artifacts.memory.records import LONGEST_KERNEL, Transition
from artifacts.outcome import Outcome
from artifacts.run_events import LoggedStep
from artifacts.trajectory import Provenance
from optimizer.tasks import Task

IMPORTER_VERSION = 1


def transition_of(step: LoggedStep, task: Task, source: str, run: str, model: str) -> Transition | None:
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
        llm=model,
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
        provenance=Provenance(format="overlay", importer_version=IMPORTER_VERSION, file="events.jsonl", file_sha256=""),
        kernel=source if shown else "",
        reference=task.source if shown else "",
    )
