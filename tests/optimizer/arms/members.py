"""Candidates as arms see them, for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping

from artifacts.measurement import Bottleneck, EvidenceLevel, Measurement, Outcome, Profile, Timing
from optimizer.arms import Member


def member(
    step_id: str,
    parent_id: str | None = None,
    *,
    us: float | None = 100.0,
    incumbent_us: float | None = None,
    direction: str = "",
    metrics: Mapping[str, float] | None = None,
    features: frozenset[str] = frozenset(),
    alive: bool = True,
) -> Member:
    """A candidate of ``us`` microseconds where the reference takes 100; one that failed for None."""
    timing = None if us is None else Timing(median_us=us, low_us=us, high_us=us)
    return Member(
        step_id=step_id,
        parent_id=parent_id,
        score=None if us is None else math.log2(100 / us),
        gain=None if us is None or incumbent_us is None else math.log2(incumbent_us / us),
        fruitless=0,
        alive=alive and us is not None,
        direction=direction,
        features=features,
        plan=f"plan of {step_id}",
        measurement=Measurement(
            outcome=Outcome.WRONG_RESULT if us is None else Outcome.CORRECT,
            stage="timing",
            device="cpu",
            error="off" if us is None else "",
            timing=timing,
            profile=Profile(
                bottleneck=Bottleneck.MEMORY,
                evidence=EvidenceLevel.COUNTERS if metrics else EvidenceLevel.COUNTED,
                fraction_of_bound=None if us is None else min(10 / us, 1.0),
                metrics=metrics or {},
            ),
        ),
    )
