"""The speed of light of a task on this device, and what a time says in its light."""

from __future__ import annotations

from pathlib import Path

from artifacts.measurement import Bottleneck, EvidenceLevel, GuardFinding, Profile, Timing
from artifacts.outcome import Outcome
from optimizer.evaluation.bound import Bound, Work, cached_ceilings, count_work, improved_ceilings, speed_of_light
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.judge.reference import Case

_SLACK = {"cuda": 1.0, "cpu": 4.0}
"""A CPU's ceilings drift with what else runs on it: only far below the bound is proof there."""
_LAUNCH_US = 8.0


def work_of(case: Case) -> Work:
    """What a case asks for at least, counted on the reference."""
    return count_work(case.model, case.inputs, [*case.model.parameters(), *case.model.buffers()])


def bound_of(work: Work, backend: str, folder: Path) -> Bound:
    """The least time this device can need; the best ceilings ever measured are kept in ``folder``."""
    return speed_of_light(work, cached_ceilings(backend, folder))


def possible(work: Work, bound: Bound, timing: Timing, backend: str, folder: Path) -> None:
    """Fail a time that no kernel can reach; the ceilings are measured again before they are believed."""
    reached = timing.median_us * _SLACK[backend]
    if bound.is_impossible(reached) and speed_of_light(work, improved_ceilings(backend, folder)).is_impossible(reached):
        message = f"{timing.median_us:.2f} µs is below the {bound.memory_us:.2f} µs that the task's bytes need"
        finding = GuardFinding(rule="below_bound", message=message)
        raise Failure(Outcome.REJECTED, "timing", message, findings=(finding,))


def counted_profile(bound: Bound, timing: Timing) -> Profile:
    """Bottleneck from counted bytes and flops, as far as the time leaves them standing."""
    seen = bound.seen_with(timing.median_us)
    bottleneck = Bottleneck(seen.limited_by)
    if seen.time_us < _LAUNCH_US and timing.median_us < 2 * _LAUNCH_US:
        bottleneck = Bottleneck.LAUNCH
    finding = f"memory bound {bound.memory_us:.1f} µs, compute bound {bound.compute_us:.1f} µs"
    if seen != bound:
        finding += ", which the candidate beats: it needs less arithmetic than the reference does"
    return Profile(
        bottleneck=bottleneck,
        evidence=EvidenceLevel.COUNTED,
        bound_us=seen.time_us,
        fraction_of_bound=seen.fraction(timing.median_us),
        findings=(finding,),
    )
