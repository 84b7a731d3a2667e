"""What evaluating one candidate gave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from artifacts.first_error import first_error


class Outcome(StrEnum):
    """Typed verdict on one candidate; a value, never an exception."""

    CORRECT = "correct"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    INFRA_ERROR = "infra_error"

    @property
    def charged_to_candidate(self) -> bool:
        """False for infrastructure errors, which say nothing about the candidate."""
        return self is not Outcome.INFRA_ERROR


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


BASELINES = ("eager", "eager_fp32", "eager_tf32", "compile", "cuda_graph")
"""The reference as a candidate may be compared with it: PyTorch as installed, without TF32, with TF32, compiled, and
replayed as a graph."""
FASTEST = "fastest"
"""Stands for the fastest baseline of a measurement's class wherever a baseline is named."""


class Precision(StrEnum):
    """The arithmetic that reference, baselines and candidate of one measurement were allowed alike.

    ``strict`` has no TF32 anywhere; ``tf32`` leaves it to each side; a half type is that of the task itself.
    """

    STRICT = "strict"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def reference(self) -> str:
        """The baseline that is the reference as it was judged: part of every correct measurement, timed beside it."""
        return {Precision.STRICT: "eager_fp32", Precision.TF32: "eager_tf32"}.get(self, "eager")

    @property
    def baselines(self) -> tuple[str, ...]:
        """Baselines that keep to the class.

        ``eager`` is not of ``strict``: PyTorch as installed uses TF32 in convolutions.
        """
        outside = {Precision.STRICT: {"eager", "eager_tf32"}, Precision.TF32: set[str]()}
        return tuple(name for name in BASELINES if name not in outside.get(self, {"eager_fp32", "eager_tf32"}))


class DoubtKind(StrEnum):
    """Why a measurement is worth less than it looks: size or sign of its ratio, or that the output was right."""

    UNSTEADY = "unsteady"
    """Most calls waited for something, e.g. a busy core: neither size nor sign of the ratio can be believed."""
    ROUGH = "rough"
    """A candidate that is far too slow was timed a few times only: the sign stands, the size is approximate."""
    UNDECIDED = "undecided"
    """The task can not tell a right output from a trivial one, so being correct says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One reason to believe the times of a measurement less; ``text`` says in one line what was seen."""

    kind: DoubtKind
    text: str


_UNSTEADY = 5.0
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
        return self.median_us > _UNSTEADY * min(self.samples_us, default=self.median_us)


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
class InputSetTiming:
    """Times under one of several input settings of a task; prompts do not show a ``hidden`` one."""

    name: str
    timing: Timing
    baselines: Mapping[str, Timing] = field(default_factory=dict)
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Verdict, time and evidence for one candidate on one task and device.

    A correct measurement has a timing and no other has one, so a failure can never carry a score.

    Attributes:
        stage: evaluation stage that decided the outcome (guard, build, correctness, runtime_guard, timing).
        error: one-paragraph reason for a failure, shown to the LLM; empty when correct.
        precision: class in which candidate and reference were compared.
        baselines: name (of :data:`BASELINES`) → timing, see :mod:`optimizer.evaluation.verify.baselines`.
        incumbent: timing of the candidate this one was interleaved with, when there was one.
        faster_than_incumbent: verdict of the paired test; None without an incumbent.
        input_sets: one entry a setting where the task has several; ``timing``, ``baselines`` and ``incumbent`` are then
            geometric means over them, and ``profile`` is that of the first.
        build_s, gpu_s: seconds spent building and on the measuring device.
        peak_bytes: process (verifier, sandbox) → most device memory that it reserved; empty on a CPU.
        doubts: why the ratios of the times should be believed less, set where they are measured; empty when nothing
            speaks against them.
        notes: what a reader must know to judge the figures (fallback routes, noise, missing features).
    """

    outcome: Outcome
    stage: str
    device: str
    error: str = ""
    precision: Precision = Precision.STRICT
    timing: Timing | None = None
    baselines: Mapping[str, Timing] = field(default_factory=dict)
    incumbent: Timing | None = None
    faster_than_incumbent: bool | None = None
    findings: tuple[GuardFinding, ...] = ()
    profile: Profile | None = None
    max_abs_error: float | None = None
    checks: tuple[str, ...] = ()
    input_sets: tuple[InputSetTiming, ...] = ()
    build_s: float = 0.0
    gpu_s: float = 0.0
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.CORRECT) != (self.timing is not None):
            raise ValueError(f"outcome {self.outcome.value} and timing {self.timing} contradict each other")
        if self.outcome is not Outcome.CORRECT and not self.error:
            raise ValueError(f"outcome {self.outcome.value} needs a reason in error")

    @property
    def unsteady(self) -> bool:
        """Whether neither size nor sign of its ratios can be believed."""
        return any(doubt.kind is DoubtKind.UNSTEADY for doubt in self.doubts)

    @property
    def first_error(self) -> str:
        """What went wrong in one line, the compiler's first error among other things; empty when correct."""
        return first_error(self.error)

    @property
    def reference(self) -> Timing | None:
        """The reference as it was judged, timed in the same run: what tells two runs of one task apart or alike."""
        return self.baselines.get(self.precision.reference)

    @property
    def fastest_baseline(self) -> str | None:
        """Name of the fastest of the baselines that keep to the class; None when none was timed."""
        timed = [name for name in self.precision.baselines if name in self.baselines]
        return min(timed, key=lambda name: self.baselines[name].median_us, default=None)

    def speedup(self, baseline: str = FASTEST) -> float | None:
        """Baseline median over candidate median; None unless correct and the baseline was timed.

        The default is the headline everywhere: whoever says "faster" means faster than the best that the class offers.
        """
        name = self.fastest_baseline if baseline == FASTEST else baseline
        if self.timing is None or name is None or name not in self.baselines:
            return None
        return self.baselines[name].median_us / self.timing.median_us

    def speedup_interval(self, baseline: str = FASTEST) -> tuple[float, float] | None:
        """Bounds of :meth:`speedup` when both times lie in their 95 % intervals; wider than 95 %."""
        name = self.fastest_baseline if baseline == FASTEST else baseline
        if self.timing is None or name is None or name not in self.baselines:
            return None
        return self.baselines[name].low_us / self.timing.high_us, self.baselines[name].high_us / self.timing.low_us

    @property
    def speedups(self) -> dict[str, float]:
        """Every speedup that can be told: over the fastest baseline of the class first, then over each by name."""
        found = {name: self.speedup(name) for name in (FASTEST, *sorted(self.baselines))}
        return {name: ratio for name, ratio in found.items() if ratio is not None}

    @property
    def scope(self) -> str:
        """What the times are of, in words: a kernel may be specialised to the shapes of a task that has one setting."""
        if not self.input_sets:
            return "one input setting, to which the kernel may be specialised"
        hidden = sum(one.hidden for one in self.input_sets)
        kept = f", {hidden} of them hidden from the prompt" if hidden else ""
        return f"geometric mean over {len(self.input_sets)} input settings{kept}"


def unsteady_times(timings: Mapping[str, Timing | None]) -> tuple[Doubt, ...]:
    """One doubt for each timing of a measurement that is not steady; keys say in words what was timed."""
    return tuple(
        Doubt(
            kind=DoubtKind.UNSTEADY,
            text=f"{name} took {min(timing.samples_us):,.0f} to {max(timing.samples_us):,.0f} us, as on a busy host: "
            "do not believe the ratio",
        )
        for name, timing in timings.items()
        if timing is not None and timing.unsteady
    )


def doubt_mark(doubts: Sequence[Doubt]) -> str:
    """What stands beside every ratio that is to be believed less: ``unsteady``; empty without a doubt."""
    return ", ".join(dict.fromkeys(doubt.kind.value for doubt in doubts))


def describe_speedups(speedups: Mapping[str, float]) -> str:
    """The headline, then what stands beside it: ``1.20x compile, the fastest baseline (eager 1.90x)``."""
    named = {name: ratio for name, ratio in speedups.items() if name != FASTEST}
    first = next((name for name, ratio in named.items() if ratio == speedups.get(FASTEST)), "")
    beside = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in named.items() if name != first)
    headline = f"{named[first]:.2f}x {first}" if first else ""
    return f"{headline}, the fastest baseline ({beside})" if headline and beside else headline or beside
