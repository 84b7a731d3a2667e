"""Times of one task's candidates on one scale, chained along paired measurements.

Each candidate is timed side by side with an ancestor. Two medians of different moments differ by what the host did in
between as well; the ratio within a pair does not. So a root is placed by its ratio to eager, everybody else by the
ratio to its ancestor, and a best-so-far curve never steps back because an old best was timed again under load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from artifacts.run_events import LoggedStep


def paired_times(steps: Sequence[LoggedStep]) -> dict[str, float]:
    """Step id → microseconds on the scale of the task's median eager time, for every correct candidate."""
    eager = _median([time for step in steps if (time := _eager(step)) is not None])
    by_id = {step.step_id: step for step in steps}
    times: dict[str, float] = {}
    for step in steps:
        if step.measurement is None or step.measurement.timing is None:
            continue
        own, pair = step.measurement.timing.median_us, step.measurement.incumbent
        before = None if pair is None else times.get(incumbent_of(step, steps, by_id, times))
        if pair is not None and before is not None:
            times[step.step_id] = before * own / pair.median_us
        else:
            then = _eager(step)
            times[step.step_id] = own if eager is None or then is None else eager * own / then
    return times


def promoted(step: LoggedStep) -> bool:
    """Whether the candidate may be the best: correct, and not called slower by its paired test."""
    measured = step.measurement
    return measured is not None and measured.timing is not None and measured.faster_than_incumbent is not False


def fastest(steps: Sequence[LoggedStep], times: Mapping[str, float]) -> str:
    """Step id of the best candidate; empty without a correct one."""
    standing = [step.step_id for step in steps if promoted(step)] or list(times)
    return min(standing, key=times.__getitem__, default="")


def incumbent_of(
    step: LoggedStep, steps: Sequence[LoggedStep], by_id: Mapping[str, LoggedStep], times: Mapping[str, float]
) -> str:
    """What a candidate was timed against, as the search picks it: nearest correct ancestor, else the best by then."""
    ancestor = by_id.get(step.parent_id or "")
    while ancestor is not None:
        if ancestor.step_id in times:
            return ancestor.step_id
        ancestor = by_id.get(ancestor.parent_id or "")
    earlier = [other for other in steps if other.index < step.index]
    return fastest(earlier, {other.step_id: times[other.step_id] for other in earlier if other.step_id in times})


def _eager(step: LoggedStep) -> float | None:
    timing = None if step.measurement is None else step.measurement.baselines.get("eager")
    return None if timing is None else timing.median_us


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
