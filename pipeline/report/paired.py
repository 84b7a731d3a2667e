"""Times of one task's candidates on one scale, chained along paired measurements.

Each candidate is timed side by side with its incumbent, which the log names. Two medians of different moments differ by
what the host did in between as well; the ratio within a pair does not. So everybody is placed by the ratio to the
incumbent, and a best-so-far curve never steps back because an old best was timed again under load. Where the whole
chain lies follows from ratios to the reference: not of its first candidate alone, whose noise would move all others,
but of the winner as it was measured again after the search, or else from the median over the chain.
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

    The scale is that of the reference in ``confirmed``, so that the winner stands at the time that the page names for
    it; without it, of the reference's median over the task.

    Args:
        winner: step id of the final candidate; ``confirmed``: its measurement after the search, if any.
    """
    reference = _reference(confirmed) or _middle(
        [time for step in steps if (time := _reference(step.measurement)) is not None]
    )
    times: dict[str, float] = {}
    chains: dict[str, str] = {}
    for step in steps:
        if step.measurement is None or step.measurement.timing is None:
            continue
        pair = step.measurement.incumbent
        before = step.incumbent_id
        if pair is not None and before in times:
            times[step.step_id] = times[before] * step.measurement.timing.median_us / pair.median_us
            chains[step.step_id] = chains[before]
        else:
            times[step.step_id] = _alone(step.measurement, reference) or step.measurement.timing.median_us
            chains[step.step_id] = step.step_id
    alone = {step.step_id: _alone(step.measurement, reference) for step in steps}
    moves = {chain: _move(times, alone, [name for name in times if chains[name] == chain]) for chain in chains.values()}
    final = _alone(confirmed, reference)
    if final is not None and winner in times:
        moves[chains[winner]] = final / times[winner]
    return {name: time * moves[chains[name]] for name, time in times.items()}


def _alone(measurement: Measurement | None, reference: float | None) -> float | None:
    """Time by the ratio to the reference within one measurement; None without."""
    then = _reference(measurement)
    if measurement is None or measurement.timing is None or then is None or reference is None:
        return None
    return reference * measurement.timing.median_us / then


def _move(times: Mapping[str, float], alone: Mapping[str, float | None], chain: Sequence[str]) -> float:
    """Factor that puts a chain where the middle one of its members says."""
    logs = [math.log(own / times[name]) for name in chain if (own := alone[name]) is not None]
    return math.exp(median(logs)) if logs else 1.0


def _reference(measurement: Measurement | None) -> float | None:
    timing = None if measurement is None else measurement.reference
    return None if timing is None else timing.median_us


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
