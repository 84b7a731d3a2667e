"""The loop: a task's search from its first step to its winner, read from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from artifacts.codec import decode, encode
from artifacts.measurement import Measurement
from artifacts.run_events import TaskFinished, TaskStarted
from optimizer.arms import Choice
from optimizer.search.effects import all_of
from optimizer.search.learn import learn
from optimizer.search.measure import measure, measured
from optimizer.search.propose import logged, propose, state_before
from optimizer.search.task_search import Attempt, Proposal, TaskSearch
from optimizer.search.write import write
from optimizer.tuning import declared, label_of, tune


def start(search: TaskSearch) -> None:
    """Log that the task is taken up."""
    sha256 = search.log.add_candidate(search.task.source)
    started = TaskStarted(task=search.task.ref, source_sha256=sha256, path=search.task.path)
    search.log.put("task_started", search.task_id, encode(started))


async def step(search: TaskSearch) -> None:
    """One step: propose → write → measure → learn, all candidates side by side."""
    proposals = await propose(search)
    attempts = await all_of(_attempt(search, proposal) for proposal in proposals)
    learn(search, attempts)


async def _attempt(search: TaskSearch, proposal: Proposal) -> Attempt:
    attempt = await write(search, proposal)
    return await measure(search, attempt)


def stop_reason(search: TaskSearch) -> str:
    """Why further steps are not worth their cost; empty when they are."""
    best, settings = search.population.best, search.run.search
    profile = None if best is None else best.measurement.profile
    fraction = None if profile is None else profile.fraction_of_bound
    if settings.reallocate and fraction is not None and fraction >= settings.near_bound:
        return f"near the bound: {fraction:.0%} of the speed of light is reached"
    return ""


async def tune_constants(search: TaskSearch) -> None:
    """Search the constants that the best candidate declares; a clearly faster setting becomes a step."""
    best, settings = search.population.best, search.run.tuning
    found = None if best is None or settings is None else declared(best.source)
    if best is None or settings is None or found is None or found.combinations < 2:
        return
    parent = best

    async def measure_all(sources: Mapping[str, str]) -> Sequence[Measurement]:
        places = [(f"{parent.step_id}/{label}", source) for label, source in sources.items()]
        return await all_of(measured(search, place, source, parent.step_id) for place, source in places)

    tuned = await tune(best.source, found, best.measurement, measure_all, settings)
    if not tuned.improved:
        return
    proposal = Proposal(
        slot=f"{search.steps_done}.0",
        mode="tune",
        parent_id=best.step_id,
        incumbent_id=best.step_id,
        state=state_before(search, best),
        choice=Choice(arm=search.arm.name),
    )
    attempt = Attempt(
        proposal=logged(search, proposal),
        source=tuned.source,
        sha256=search.log.add_candidate(tuned.source),
        words=f"set {label_of(tuned.setting)}, the best of {len(tuned.trials) + 1} measured settings",
        measurement=tuned.measurement,
    )
    learn(search, [attempt])


def finish(search: TaskSearch, reason: str) -> TaskFinished:
    """Log and return how the search ended."""
    best, confirmation = search.population.best, search.confirmation
    told = None if best is None else confirmation.measurement or best.measurement
    finished = TaskFinished(
        task_id=search.task_id,
        reason=reason,
        steps=search.steps_done,
        best_step="" if best is None else best.step_id,
        best_sha256="" if best is None else best.sha256,
        speedups={} if told is None else told.speedups,
        doubts=() if told is None else told.doubts,
        confirmed=confirmation.measurement,
        refuted=confirmation.refuted,
    )
    return decode(TaskFinished, search.log.put("task_finished", search.task_id, encode(finished)))
