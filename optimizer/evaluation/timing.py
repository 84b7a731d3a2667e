"""Time callables until the answer is narrow enough, and compare two of them fairly.

``time_callable`` gives a median with its interval and the raw samples. ``compare`` interleaves two
callables (ABBA) so that drifts of clock and temperature hit both alike, and says *faster* only when
a paired test and a smallest effect agree.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from artifacts.measurement import Timing
from optimizer.evaluation.clock import Call, Clock
from optimizer.evaluation.interval import relative_width, signed_rank_p, timing_of

Prepare = Callable[[], Call]
"""Binds fresh arguments outside the timed region; see :func:`optimizer.evaluation.arguments.bind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """When to stop measuring.

    Attributes:
        min_samples, max_samples: bounds of the number of timed calls of each callable.
        budget_s: wall-clock seconds of one measurement, warm-up included; min_samples go first.
        warmup_s: seconds of untimed calls.
        width: stop when the interval's half width is below this fraction of the median.
        level: one-sided error of the paired test.
        effect: smallest relative gain that counts as faster.
    """

    min_samples: int = 20
    max_samples: int = 400
    budget_s: float = 1.0
    warmup_s: float = 0.1
    width: float = 0.002
    level: float = 0.01
    effect: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= self.max_samples:
            raise ValueError(f"need 1 <= min_samples <= max_samples, got {self.min_samples}, {self.max_samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate and an incumbent, timed in turns.

    Attributes:
        ratio: median over the blocks of incumbent time / candidate time; above 1 the candidate is faster.
        p_value: one-sided, of no gain.
        faster: ``p_value`` below the level and ``ratio`` above 1 + effect.
    """

    candidate: Timing
    incumbent: Timing
    ratio: float
    p_value: float
    faster: bool


def time_callable(prepare: Prepare, clock: Clock, settings: TimingSettings | None = None) -> Timing:
    """Median run time of the calls that ``prepare`` binds.

    Raises whatever a call raises; a time of zero or less is a ``ValueError`` from :class:`Timing`.
    """
    settings = settings or TimingSettings()
    deadline = time.monotonic() + settings.budget_s
    warm_up([prepare], clock, settings.warmup_s)
    samples: list[float] = []
    while _wants_more(samples, settings, deadline):
        batch = _batch(len(samples), settings)
        samples += clock.measure([prepare] * batch)
    return timing_of(samples)


def compare(candidate: Prepare, incumbent: Prepare, clock: Clock, settings: TimingSettings | None = None) -> Comparison:
    """Time both in ABBA blocks and test the paired differences.

    A block is candidate, incumbent, incumbent, candidate, so a linear drift cancels; the next block
    starts with the other one, so the place after a switch is shared too.
    """
    settings = settings or TimingSettings()
    deadline = time.monotonic() + settings.budget_s
    warm_up([candidate, incumbent], clock, settings.warmup_s)
    mine: list[float] = []
    theirs: list[float] = []
    gains: list[float] = []
    swap = False
    while _wants_more(mine, settings, deadline) or _wants_more(theirs, settings, deadline):
        first, second = (incumbent, candidate) if swap else (candidate, incumbent)
        block = clock.measure([first, second, second, first])
        outer, inner = (block[0], block[3]), (block[1], block[2])
        ours, other = (inner, outer) if swap else (outer, inner)
        mine += ours
        theirs += other
        gains.append(math.log(math.prod(other) / math.prod(ours)) / 2)
        swap = not swap
    return _verdict(mine, theirs, gains, settings)


def seen_again(first: Comparison, again: Callable[[], Comparison]) -> Comparison:
    """The comparison that decides: ``first``, or the one that ``again`` makes in new processes when a gain was seen.

    Where a process got its memory is worth up to 5 % of a short kernel's time, and steadily; a host can be late for one
    of two processes. A test within one pair finds that as surely as a real gain (on an H200 7 of 108 kernels were
    promoted over themselves).
    """
    return again() if first.faster else first


def warm_up(prepares: list[Prepare], clock: Clock, seconds: float) -> None:
    """Call each at least three times and for ``seconds`` in all, untimed."""
    deadline = time.monotonic() + seconds
    rounds = 0
    while rounds < 3 or time.monotonic() < deadline:
        clock.measure(prepares)
        rounds += 1


def _verdict(mine: list[float], theirs: list[float], gains: list[float], settings: TimingSettings) -> Comparison:
    candidate, incumbent = timing_of(mine), timing_of(theirs)
    ratio = math.exp(statistics.median(gains))
    p_value = signed_rank_p(gains)
    faster = p_value < settings.level and ratio > 1 + settings.effect
    return Comparison(candidate=candidate, incumbent=incumbent, ratio=ratio, p_value=p_value, faster=faster)


def _batch(taken: int, settings: TimingSettings) -> int:
    if taken == 0:
        return settings.min_samples
    return max(min(taken // 2, settings.max_samples - taken), 1)


def _wants_more(samples: list[float], settings: TimingSettings, deadline: float) -> bool:
    if len(samples) < settings.min_samples:
        return True
    if len(samples) >= settings.max_samples or time.monotonic() >= deadline:
        return False
    return relative_width(samples) > settings.width
