"""Time until the answer is narrow enough, and compare two candidates fairly."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from artifacts.measurement import Timing
from optimizer.evaluation.sandbox.clock import Call, Clock
from optimizer.evaluation.verify.sandbox_client import SandboxClient

Prepare = Callable[[], Call]
"""Binds fresh arguments outside the timed region; see :func:`optimizer.evaluation.sandbox.clock.bind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """When to stop measuring.

    Attributes:
        min_samples, max_samples: bounds of the number of timed calls of each callable.
        budget_s: wall-clock seconds of one measurement, warm-up included; min_samples go first.
        warmup_s: seconds of untimed calls, at most half of the budget.
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
    warm_up([prepare], clock, min(settings.warmup_s, settings.budget_s / 2))
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
    warm_up([candidate, incumbent], clock, min(settings.warmup_s, settings.budget_s / 2))
    mine: list[float] = []
    theirs: list[float] = []
    swap = False
    while _wants_more(mine, settings, deadline) or _wants_more(theirs, settings, deadline):
        first, second = (incumbent, candidate) if swap else (candidate, incumbent)
        block = clock.measure([first, second, second, first])
        outer, inner = (block[0], block[3]), (block[1], block[2])
        ours, other = (inner, outer) if swap else (outer, inner)
        mine += ours
        theirs += other
        swap = not swap
    return _verdict(mine, theirs, settings)


def block_ratios(candidate_us: Sequence[float], incumbent_us: Sequence[float]) -> list[float]:
    """Incumbent time over candidate time in each block of :func:`compare`, from the samples in their order.

    The quicker of two calls stands for a side: whatever else runs on the machine only ever adds time, and where it adds
    a time slice of 4 ms to every tenth call of 0.5 ms, means of two lose a gain of 1.4 times in it. Both sides are
    treated alike, so without a difference the logarithms stay symmetric about zero, as the test needs.
    """
    quickest = [[min(pair) for pair in zip(us[::2], us[1::2], strict=True)] for us in (candidate_us, incumbent_us)]
    return [other / own for own, other in zip(*quickest, strict=True)]


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


def _verdict(mine: list[float], theirs: list[float], settings: TimingSettings) -> Comparison:
    candidate, incumbent = timing_of(mine), timing_of(theirs)
    gains = [math.log(ratio) for ratio in block_ratios(mine, theirs)]
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


_Z95 = 1.959963984540054


def median_interval(samples: Sequence[float], z: float = _Z95) -> tuple[float, float, float]:
    """Return (low, median, high): the median and its interval from the binomial ranks.

    Args:
        samples: at least one value, any order.
        z: normal quantile of the wanted two-sided level, 1.96 for 95 %.
    """
    ordered = sorted(samples)
    count = len(ordered)
    reach = z * math.sqrt(count) / 2
    low = max(math.floor(count / 2 - reach), 0)
    high = min(math.ceil(count / 2 + reach), count - 1)
    middle = statistics.median(ordered)
    return min(ordered[low], middle), middle, max(ordered[high], middle)


def timing_of(samples_us: Sequence[float]) -> Timing:
    """Summarise raw samples in microseconds; the samples are kept in the order they were taken."""
    low, middle, high = median_interval(samples_us)
    return Timing(median_us=middle, low_us=low, high_us=high, samples_us=tuple(samples_us))


def relative_width(samples: Sequence[float]) -> float:
    """Half the width of the median's 95 % interval over the median."""
    low, middle, high = median_interval(samples)
    return (high - low) / (2 * middle) if middle > 0 else math.inf


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided p-value of Wilcoxon's signed-rank test that the differences are centred above zero.

    Normal approximation with continuity correction; zeros are dropped, ties share their mean rank.
    Returns 1.0 when nothing is left to test.
    """
    values = sorted((value for value in differences if value != 0), key=abs)
    count = len(values)
    if count == 0:
        return 1.0
    positive, ties, start = 0.0, 0.0, 0
    while start < count:
        end = start
        while end < count and abs(values[end]) == abs(values[start]):
            end += 1
        rank = (start + 1 + end) / 2
        positive += rank * sum(value > 0 for value in values[start:end])
        ties += (end - start) ** 3 - (end - start)
        start = end
    mean = count * (count + 1) / 4
    variance = count * (count + 1) * (2 * count + 1) / 24 - ties / 48
    score = (positive - mean - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(score / math.sqrt(2))


class SandboxCalls:
    """Stands for one sandbox in ``time_callable`` and ``compare``; it is never called itself."""

    def __init__(self, sandbox: SandboxClient, variants: int, seed: int) -> None:
        self.sandbox = sandbox
        self.variants = variants
        self._random = random.Random(seed)

    def draw(self) -> int:
        """Which input variant the next call gets: unknown to the candidate before."""
        return self._random.randrange(self.variants)

    def __call__(self) -> Call:
        """Not for calling; the remote clock asks the sandbox."""
        raise TypeError("a sandbox's calls are timed by RemoteClock")


class RemoteClock:
    """A :class:`optimizer.evaluation.sandbox.clock.Clock` whose calls happen in sandboxes.

    Runs of one sandbox are sent together.
    """

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """Time each call where it lives."""
        samples: list[float] = []
        start = 0
        while start < len(prepares):
            calls = prepares[start]
            assert isinstance(calls, SandboxCalls)
            end = start
            while end < len(prepares) and prepares[end] is calls:
                end += 1
            samples += calls.sandbox.time([calls.draw() for _ in range(end - start)])
            start = end
        return samples
