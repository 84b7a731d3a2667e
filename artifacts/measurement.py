"""What evaluating one candidate gave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from artifacts.outcome import Outcome


class Bottleneck(StrEnum):
    """What limits a kernel, coarsely."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LATENCY = "latency"
    LAUNCH = "launch"
    UNKNOWN = "unknown"


class EvidenceLevel(StrEnum):
    """How a profile was obtained: hardware counters, counted bytes and flops, or not at all."""

    COUNTERS = "counters"
    COUNTED = "counted"
    NONE = "none"


UNSTEADY = 5.0
"""Times the fastest sample that the median of a timing may be; of 500 recorded timings one came to 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Run time of one callable in microseconds: median with its 95 % interval and raw samples."""

    median_us: float
    low_us: float
    high_us: float
    samples_us: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        values = (self.low_us, self.median_us, self.high_us)
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise ValueError(f"timing must be finite and positive, got {values}")
        if not self.low_us <= self.median_us <= self.high_us:
            raise ValueError(f"timing interval must hold its median, got {values}")

    @property
    def unsteady(self) -> bool:
        """Whether most calls took many times as long as the fastest: they waited for something, e.g. a busy core."""
        return self.median_us > UNSTEADY * min(self.samples_us, default=self.median_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFinding:
    """One thing a guard saw; ``fatal`` findings make the outcome ``rejected``."""

    rule: str
    message: str
    line: int | None = None
    fatal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Why a kernel takes its time: bottleneck, speed-of-light bound and the evidence for both."""

    bottleneck: Bottleneck = Bottleneck.UNKNOWN
    evidence: EvidenceLevel = EvidenceLevel.NONE
    bound_us: float | None = None
    fraction_of_bound: float | None = None
    findings: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fraction_of_bound is not None and self.fraction_of_bound < 0:
            raise ValueError(f"fraction_of_bound must not be negative, got {self.fraction_of_bound}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Verdict, time and evidence for one candidate on one task and device.

    A correct measurement has a timing and no other has one, so a failure can never carry a score.

    Attributes:
        stage: evaluation stage that decided the outcome (guard, build, correctness, runtime_guard, timing).
        error: one-paragraph reason for a failure, shown to the LLM; empty when correct.
        baselines: name (eager, eager_tf32, compile, cuda_graph) → timing from the same run.
        incumbent: timing of the candidate this one was interleaved with, when there was one.
        faster_than_incumbent: verdict of the paired test; None without an incumbent.
        build_s, gpu_s: seconds spent building and on the measuring device.
        notes: what a reader must know to judge the figures (fallback routes, noise, missing features).
    """

    outcome: Outcome
    stage: str
    device: str
    error: str = ""
    timing: Timing | None = None
    baselines: Mapping[str, Timing] = field(default_factory=dict)
    incumbent: Timing | None = None
    faster_than_incumbent: bool | None = None
    findings: tuple[GuardFinding, ...] = ()
    profile: Profile | None = None
    max_abs_error: float | None = None
    checks: tuple[str, ...] = ()
    build_s: float = 0.0
    gpu_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.CORRECT) != (self.timing is not None):
            raise ValueError(f"outcome {self.outcome.value} and timing {self.timing} contradict each other")
        if self.outcome is not Outcome.CORRECT and not self.error:
            raise ValueError(f"outcome {self.outcome.value} needs a reason in error")

    def speedup(self, baseline: str = "eager") -> float | None:
        """Baseline median over candidate median; None unless correct and the baseline was timed."""
        if self.timing is None or baseline not in self.baselines:
            return None
        return self.baselines[baseline].median_us / self.timing.median_us

    @property
    def doubt(self) -> str:
        """Why the ratios of the timings should not be believed, in words; empty when nothing speaks against them."""
        timings = {"the candidate": self.timing, **dict(sorted(self.baselines.items()))}
        found = [
            f"{name} took {min(timing.samples_us):,.0f} to {max(timing.samples_us):,.0f} us"
            for name, timing in timings.items()
            if timing is not None and timing.unsteady
        ]
        return f"{' and '.join(found)}, as on a busy host: do not believe the ratio" if found else ""
