"""Winners measured again when the search is over: the fastest of many noisy figures is a flattering one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.search.population import Node, Population

TRIES = 3
"""Candidates of a task that are measured again at most, each after the one before it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What measuring the winner of a task again gave.

    Attributes:
        measurement: of the winner, None when nothing could be confirmed.
        refuted: step id of candidates that failed the second time, with the reason.
    """

    measurement: Measurement | None = None
    refuted: Mapping[str, str] = field(default_factory=dict)


async def confirm(population: Population, measure: Callable[[Node], Awaitable[Measurement]]) -> Confirmation:
    """Measure the best candidate again, and the next best where it fails; those that fail can win no more."""
    refuted: dict[str, str] = {}
    for _ in range(TRIES):
        best = population.best
        if best is None:
            break
        again = await measure(best)
        if again.outcome is Outcome.CORRECT:
            return Confirmation(measurement=again, refuted=refuted)
        if not again.outcome.charged_to_candidate:
            break
        refuted[best.step_id] = f"{again.outcome.value} when measured again: {again.error}"
        population.refute(best)
    return Confirmation(refuted=refuted)
