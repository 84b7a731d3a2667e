"""Times of one task's candidates on one scale, chained along paired measurements.

Each candidate is timed side by side with an ancestor. Two medians of different moments differ by what the host did in
between as well; the ratio within a pair does not. So everybody is placed by the ratio to an ancestor, and a best-so-far
curve never steps back because an old best was timed again under load. Where the whole chain lies follows from ratios to
eager: not of its first candidate alone, whose noise would move all others, but of the winner as it was measured again
after the search, or else from the median over the chain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from artifacts.measurement import Measurement
from artifacts.run_events import LoggedStep


def paired_times(
    steps: Sequence[LoggedStep], winner: str = "", confirmed: Measurement | None = None
) -> dict[str, float]:
    """Step id → microseconds for every correct candidate.

    The scale is that of eager in ``confirmed``, so that the winner stands at the time that the page names as its own;
    without it, of eager's median over the task.

    Args:
        winner: step id of the final candidate; ``confirmed``: its measurement after the search, if any.
    """
    eager = _eager(confirmed) or _middle([time for step in steps if (time := _eager(step.measurement)) is not None])
    by_id = {step.step_id: step for step in steps}
    times: dict[str, float] = {}
    chains: dict[str, str] = {}
    for step in steps:
        if step.measurement is None or step.measurement.timing is None:
            continue
        pair = step.measurement.incumbent
        before = "" if pair is None else incumbent_of(step, steps, by_id, times)
        if pair is not None and before in times:
            times[step.step_id] = times[before] * step.measurement.timing.median_us / pair.median_us
            chains[step.step_id] = chains[before]
        else:
            times[step.step_id] = _alone(step.measurement, eager) or step.measurement.timing.median_us
            chains[step.step_id] = step.step_id
    alone = {step.step_id: _alone(step.measurement, eager) for step in steps}
    moves = {chain: _move(times, alone, [name for name in times if chains[name] == chain]) for chain in chains.values()}
    final = _alone(confirmed, eager)
    if final is not None and winner in times:
        moves[chains[winner]] = final / times[winner]
    return {name: time * moves[chains[name]] for name, time in times.items()}


def _alone(measurement: Measurement | None, eager: float | None) -> float | None:
    """Time by the ratio to eager within one measurement; None without."""
    then = _eager(measurement)
    if measurement is None or measurement.timing is None or then is None or eager is None:
        return None
    return eager * measurement.timing.median_us / then


def _move(times: Mapping[str, float], alone: Mapping[str, float | None], chain: Sequence[str]) -> float:
    """Factor that puts a chain where the middle one of its members says."""
    logs = [math.log(own / times[name]) for name in chain if (own := alone[name]) is not None]
    return math.exp(median(logs)) if logs else 1.0


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


def _eager(measurement: Measurement | None) -> float | None:
    timing = None if measurement is None else measurement.baselines.get("eager")
    return None if timing is None else timing.median_us


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
