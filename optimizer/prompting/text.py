"""Text for prompts: what others wrote as fenced data, and what was measured in lines."""

from __future__ import annotations

import hashlib
import unicodedata

from artifacts.measurement import EvidenceLevel, InputSetTiming, Measurement, Profile, Timing

MARK_DIGITS = 16
"""Hex digits of a fence's number; a text would have to contain its own hash to close it."""


def fenced(text: str, label: str, limit: int) -> str:
    """Return ``text`` between two marks whose number depends on the text, at most ``limit`` characters of it.

    Args:
        text: anything, from any source.
        label: what it is, in our words; never taken from data.
        limit: characters kept; what is left out is counted in its place.
    """
    content = clean(shorten(text, limit))
    mark = _mark(label + "\0" + content)
    while mark in content:
        mark = _mark(mark + content)
    return f"<<DATA {mark} {label}\n{content}\nDATA {mark}>>"


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:MARK_DIGITS]


def clean(text: str) -> str:
    """Return ``text`` without control, direction and zero-width characters, and with plain line ends."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char for char in lines if char in "\n\t" or not unicodedata.category(char).startswith("C")).strip(
        "\n"
    )


def shorten(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and end with the number of characters left out between them."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def brief(text: str, limit: int) -> str:
    """Return ``text``, or its beginning: up to a sentence where one ends in the second half of ``limit`` characters."""
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(". ")[0]
    return f"{whole}." if len(whole) > limit // 2 else f"{text[: limit - 1]}…"


def facts(measurement: Measurement) -> list[str]:
    """Say what was measured, one fact a line; times to three digits, because more is noise."""
    if measurement.timing is None:
        first, (begin, _, rest) = measurement.first_error, measurement.error.partition("\n")
        told = rest if first.endswith(begin) else measurement.error
        lines = [first, f"outcome: {measurement.outcome.value} at {measurement.stage}", *([told] if told else [])]
        return lines + [f"guard {finding.rule}: {finding.message}" for finding in measurement.findings]
    lines = [f"time: {_time(measurement.timing)}"]
    for name, baseline in sorted(measurement.baselines.items()):
        lines.append(f"PyTorch {name}: {_time(baseline)}, the candidate is {_times(measurement.speedup(name))} as fast")
    for one in measurement.input_sets:
        if not one.hidden:
            lines.append(f"under {one.name}: {_duration(one.timing.median_us)}, PyTorch {_baselines(one)}")
    return lines + _profile(measurement)


def _baselines(one: InputSetTiming) -> str:
    return ", ".join(f"{name} {_duration(timing.median_us)}" for name, timing in sorted(one.baselines.items()))


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
