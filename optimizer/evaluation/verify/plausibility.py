"""Timing that a candidate can not talk its way out of: seen from outside, against the bound, outputs looked at."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from artifacts.measurement import Bottleneck, EvidenceLevel, GuardFinding, Outcome, Profile, Timing
from optimizer.evaluation.verify.bound import (
    Bound,
    Work,
    cached_ceilings,
    count_work,
    improved_ceilings,
    speed_of_light,
)
from optimizer.evaluation.verify.correctness import PlainTrial
from optimizer.evaluation.verify.effort import Effort
from optimizer.evaluation.verify.failure import Failure, rejected
from optimizer.evaluation.verify.reference import Case, Reference
from optimizer.evaluation.verify.sandbox_client import SandboxClient, TimedOutput
from optimizer.evaluation.verify.tolerance import bounds_of, output_problem

_BATCH_S = 0.03
_MOST_CALLS = 2000
_ATTEMPTS = 5
UNSEEN = 3
_LINGERING_CALLS = 10
_LEAST_LINGERING = 3
_LINGER_US = 10.0
_LINGER_SHARE = 0.3
_SHARE = 0.4
"""A cold-cache time below this share of the warm time seen from outside is a lie, not noise."""
_LOAD_EXPLAINS = 0.1
"""Other work on a CPU makes one of two times up to this many times longer."""
_CACHE_GAIN = 3.0
"""Repeated contents may be this much faster by chance."""
_ROUNDS = 4
_SEEN_GAIN = {"cpu": 2.0, "cuda": 1.5}
"""Nor may the least of several times; a CPU learns the branches that small inputs take."""
_SEEN_US = 4.0
_HOST_US = {"cpu": 10.0, "cuda": 60.0}
"""What one call may cost on the host beside the kernel's time that events see."""


def seen_from_outside(
    sandbox: SandboxClient, variants: int, timing: Timing, backend: str, busy: Callable[[], bool], effort: Effort
) -> float:
    """Least microseconds that a call can have taken, seen by the verifier: the slope between a short and a long batch.

    On CUDA this is wall time, on the CPU the process's CPU time over all cores: a busy host stretches
    wall time, and an honest kernel must not be accused of that.

    Args:
        busy: whether others used much of the machine meanwhile.
        effort: bounds the number of calls.

    Raises:
        Failure: what the candidate's process reports is far below it, every time.
    """
    order = list(range(effort.calls(variants)))
    count = max(min(int(_BATCH_S * 1e6 / timing.median_us), _MOST_CALLS), effort.calls(4 * len(order)))
    least = float("inf")
    for _ in range(_ATTEMPTS):
        short, long = sandbox.run(order, len(order)), sandbox.run(order, count + len(order))
        wall, cpu = (long[0] - short[0]) / count * 1e6, (long[1] - short[1]) / count * 1e6
        least = min(least, wall if backend == "cuda" else min(wall, cpu / (os.cpu_count() or 1)))
        if timing.median_us >= _SHARE * least - _HOST_US[backend]:
            return least
    message = f"the candidate's process reports {timing.median_us:.1f} µs a call, the verifier sees {least:.1f} µs"
    raise clocks_disagree("clock", message, timing.median_us / least, backend, busy)


def all_work_is_timed(sandbox: SandboxClient, variants: int, timing: Timing, effort: Effort) -> None:
    """See that a CUDA device rests when the stream on which calls are timed does.

    Raises:
        Failure: it goes on, every time: part of the work runs where no event sees it.
    """
    late = sandbox.linger([call % variants for call in range(effort.calls(_LINGERING_CALLS, _LEAST_LINGERING))])
    if late > max(_LINGER_US, _LINGER_SHARE * timing.median_us):
        message = f"the device works for {late:.1f} µs after the timed stream has finished"
        raise rejected("timing", "stream", message)


def clocks_disagree(rule: str, message: str, ratio: float, backend: str, busy: Callable[[], bool]) -> Failure:
    """The verdict on two times of which the smaller is ``ratio`` of the larger.

    On a CPU that others keep busy a moderate difference says nothing about the candidate; a large one is never load.
    """
    if backend == "cpu" and ratio >= _LOAD_EXPLAINS and busy():
        finding = GuardFinding(rule=rule, message=message, fatal=False)
        reason = f"the machine is too busy to time this candidate: {message}"
        return Failure(Outcome.INFRA_ERROR, "timing", reason, findings=(finding,))
    return rejected("timing", rule, message)


def timed_outputs_right(outputs: list[TimedOutput], trials: Sequence[PlainTrial], reference: Reference) -> None:
    """Look at outputs of timed calls, and let go of each.

    Raises:
        Failure: they are not what the reference gives for the same inputs.
    """
    while outputs:
        output = outputs.pop()
        answer = reference.native_answer(reference.scaled(trials[output.variant % len(trials)].case, output.factor))
        bounds = bounds_of(answer)
        problem = bounds and output_problem(output.facts, output.tensors, answer, bounds, reference.device)
        if problem:
            raise rejected("timing", "timed_output", f"a timed call gives another result: {problem}")
        del output, answer


class UnseenInputs:
    """Inputs that no candidate has seen, the first few made ahead so that nobody waits for them.

    Args:
        reference: makes them.
        seed: of the first one.
        count: how many are looked at together.
        ahead: whether there is room for those made ahead.
    """

    def __init__(self, reference: Reference, seed: int, count: int = UNSEEN, *, ahead: bool = True) -> None:
        self._reference = reference
        self._seed = seed
        self._next = 0
        self._count = count
        self._ahead = self.draw() if ahead else []

    def draw(self) -> list[list[Any]]:
        """Inputs never given before."""
        seeds = range(self._seed + self._next, self._seed + self._next + self._count)
        self._next += self._count
        return [self._reference.inputs(seed) for seed in seeds]

    def take(self) -> list[list[Any]]:
        """Inputs never given before, at once the first time."""
        ahead, self._ahead = self._ahead, []
        return ahead or self.draw()


def unseen_cost_the_same(
    sandbox: SandboxClient,
    unseen: UnseenInputs,
    backend: str,
    busy: Callable[[], bool],
    effort: Effort,
    breathe: Callable[[], None] = lambda: None,
) -> None:
    """Time calls on inputs that the candidate has never seen, the same again, and new ones between them.

    Args:
        busy: whether others used much of the machine meanwhile.
        effort: bounds the number of calls; ``breathe``: called between attempts.

    Raises:
        Failure: contents seen before are answered faster, so answers are kept somewhere.
    """
    first = new = again = math.inf
    order: list[int] = []
    unusual = True
    for attempt in range(_ATTEMPTS):
        if unusual:
            fresh = unseen.take()
            rounds = max(effort.calls(_ROUNDS * len(fresh)) // len(fresh), 1)
            order = [index for index in range(len(fresh)) for _ in range(rounds)]
            sandbox.hold(fresh)
            del fresh
            first = min(first, *sandbox.time(order[::rounds], new=False))
        breathe()
        new, again = min(new, *sandbox.time(order)), min(again, *sandbox.time(order, new=False))
        unusual = first > _CACHE_GAIN * again + _HOST_US[backend]
        dearer = new > _SEEN_GAIN[backend] * again and new > again + _SEEN_US
        if attempt > 0 and not unusual and not dearer:
            return
    message = f"inputs never seen take {max(first, new):.1f} µs, the same again {again:.1f} µs"
    raise clocks_disagree("cache", message, again / max(first, new), backend, busy)


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
        raise rejected("timing", "below_bound", message)


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


_BUSY = 0.25
"""Share of all cores' time that others must have used before they explain anything."""
_IDLE_FIELDS = (3, 4)
"""Idle and waiting for disks, in a line of ``/proc/stat`` after its name (see proc_stat(5))."""


class HostLoad:
    """CPU time of others since this was made.

    Args:
        own: CPU seconds so far of the processes that belong to the evaluation.
        stat: the kernel's table of CPU time.
    """

    def __init__(self, own: Callable[[], float], stat: Path = Path("/proc/stat")) -> None:
        self._own = own
        self._stat = stat
        self._start = time.monotonic(), self._busy_s(), own()

    def others(self) -> float:
        """Share of all cores' time that went to others; 0 where the kernel does not say."""
        then, busy, own = self._start
        capacity = (time.monotonic() - then) * (os.cpu_count() or 1)
        used = (self._busy_s() - busy) - (self._own() - own)
        return min(max(used / capacity, 0.0), 1.0) if capacity > 0 else 0.0

    def is_busy(self) -> bool:
        """Whether others use enough to explain times that are off by some factor."""
        return self.others() > _BUSY

    def _busy_s(self) -> float:
        try:
            fields = [int(field) for field in self._stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        return (sum(fields) - sum(fields[index] for index in _IDLE_FIELDS)) / os.sysconf("SC_CLK_TCK")
