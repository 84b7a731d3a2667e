"""What was measured of a candidate, in the lines that a prompt holds."""

from __future__ import annotations

from artifacts.measurement import EvidenceLevel, Measurement, Profile, Timing


def facts(measurement: Measurement) -> list[str]:
    """Say what was measured, one fact a line; times to three digits, because more is noise."""
    if measurement.timing is None:
        lines = [f"outcome: {measurement.outcome.value} at {measurement.stage}", measurement.error]
        return lines + [f"guard {finding.rule}: {finding.message}" for finding in measurement.findings]
    lines = [f"time: {_time(measurement.timing)}"]
    for name, baseline in sorted(measurement.baselines.items()):
        lines.append(f"PyTorch {name}: {_time(baseline)}, the candidate is {_times(measurement.speedup(name))} as fast")
    return lines + _profile(measurement)


def _profile(measurement: Measurement) -> list[str]:
    profile = measurement.profile
    if profile is None or profile.evidence is EvidenceLevel.NONE:
        return ["profile: none"]
    lines = [_limit(profile)]
    if profile.bound_us is not None and profile.fraction_of_bound is not None:
        share = f"{100 * profile.fraction_of_bound:.0f} %"
        least = f"least time for the task's bytes and the reference's arithmetic: {_duration(profile.bound_us)}"
        lines.append(f"{least}; {share} of that speed is reached")
    return lines + list(profile.findings)


def _limit(profile: Profile) -> str:
    """What limits the candidate; of a profile that was only counted, what would limit a perfect one."""
    if profile.evidence is EvidenceLevel.COUNTED:
        return (
            f"at the highest rates of this device the task is limited by: {profile.bottleneck.value} (counted on the "
            "reference; what limits this candidate was not measured)"
        )
    return f"limited by: {profile.bottleneck.value} (evidence: {profile.evidence.value})"


def _time(timing: Timing) -> str:
    low, high = _duration(timing.low_us), _duration(timing.high_us)
    return f"{_duration(timing.median_us)} (95 % interval {low} to {high})"


def _duration(microseconds: float) -> str:
    """Three significant digits in the unit that needs no exponent."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} us"


def _times(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio:.2f}x"
