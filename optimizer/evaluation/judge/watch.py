"""Timing that a candidate can not talk its way out of: seen from outside, outputs looked at."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from artifacts.measurement import GuardFinding, Timing
from artifacts.outcome import Outcome
from optimizer.evaluation.arguments import scaled
from optimizer.evaluation.judge.cell_client import Cell, TimedOutput
from optimizer.evaluation.judge.compare import bounds_of, output_problem
from optimizer.evaluation.judge.correctness import PlainTrial
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.judge.reference import Reference

_BATCH_S = 0.03
_MOST_CALLS = 2000
_ATTEMPTS = 5
UNSEEN = 3
_LINGERING_CALLS = 10
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


def seen_from_outside(cell: Cell, variants: int, timing: Timing, backend: str, busy: Callable[[], bool]) -> float:
    """Least microseconds that a call can have taken, seen by the judge: the slope between a short and a long batch.

    On CUDA this is wall time, on the CPU the process's CPU time over all cores: a busy host stretches
    wall time, and an honest kernel must not be accused of that.

    Args:
        busy: whether others used much of the machine meanwhile.

    Raises:
        Failure: what the candidate's process reports is far below it, every time.
    """
    order = list(range(variants))
    count = max(min(int(_BATCH_S * 1e6 / timing.median_us), _MOST_CALLS), 4 * variants)
    least = float("inf")
    for _ in range(_ATTEMPTS):
        short, long = cell.run(order, variants), cell.run(order, count + variants)
        wall, cpu = (long[0] - short[0]) / count * 1e6, (long[1] - short[1]) / count * 1e6
        least = min(least, wall if backend == "cuda" else min(wall, cpu / (os.cpu_count() or 1)))
        if timing.median_us >= _SHARE * least - _HOST_US[backend]:
            return least
    message = f"the candidate's process reports {timing.median_us:.1f} µs a call, the judge sees {least:.1f} µs"
    raise clocks_disagree("clock", message, timing.median_us / least, backend, busy)


def all_work_is_timed(cell: Cell, variants: int, timing: Timing) -> None:
    """See that a CUDA device rests when the stream on which calls are timed does.

    Raises:
        Failure: it goes on, every time: part of the work runs where no event sees it.
    """
    late = cell.linger([call % variants for call in range(_LINGERING_CALLS)])
    if late > max(_LINGER_US, _LINGER_SHARE * timing.median_us):
        message = f"the device works for {late:.1f} µs after the timed stream has finished"
        raise Failure(Outcome.REJECTED, "timing", message, findings=(GuardFinding(rule="stream", message=message),))


def clocks_disagree(rule: str, message: str, ratio: float, backend: str, busy: Callable[[], bool]) -> Failure:
    """The verdict on two times of which the smaller is ``ratio`` of the larger.

    On a CPU that others keep busy a moderate difference says nothing about the candidate; a large one is never load.
    """
    if backend == "cpu" and ratio >= _LOAD_EXPLAINS and busy():
        finding = GuardFinding(rule=rule, message=message, fatal=False)
        reason = f"the machine is too busy to time this candidate: {message}"
        return Failure(Outcome.INFRA_ERROR, "timing", reason, findings=(finding,))
    return Failure(Outcome.REJECTED, "timing", message, findings=(GuardFinding(rule=rule, message=message),))


def timed_outputs_right(outputs: Sequence[TimedOutput], trials: Sequence[PlainTrial], reference: Reference) -> None:
    """Look at outputs of timed calls.

    Raises:
        Failure: they are not what the reference gives for the same inputs.
    """
    for output in outputs:
        case = trials[output.variant % len(trials)].case
        answer = reference.answer(dataclasses.replace(case, inputs=scaled(case.inputs, output.factor)))
        bounds = bounds_of(answer)
        problem = bounds and output_problem(output.facts, output.tensors, answer, bounds, reference.device)
        if problem:
            message = f"a timed call gives another result: {problem}"
            finding = GuardFinding(rule="timed_output", message=message)
            raise Failure(Outcome.REJECTED, "timing", message, findings=(finding,))


class UnseenInputs:
    """Inputs that no candidate has seen, the first few made ahead so that nobody waits for them.

    Args:
        reference: makes them.
        seed: of the first one.
        count: how many are looked at together.
    """

    def __init__(self, reference: Reference, seed: int, count: int = UNSEEN) -> None:
        self._reference = reference
        self._seed = seed
        self._next = 0
        self._count = count
        self._ahead = self.draw()

    def draw(self) -> list[list[Any]]:
        """Inputs never given before."""
        seeds = range(self._seed + self._next, self._seed + self._next + self._count)
        self._next += self._count
        return [self._reference.inputs(seed) for seed in seeds]

    def take(self) -> list[list[Any]]:
        """Inputs never given before, at once the first time."""
        ahead, self._ahead = self._ahead, []
        return ahead or self.draw()


def unseen_cost_the_same(cell: Cell, unseen: UnseenInputs, backend: str, busy: Callable[[], bool]) -> None:
    """Time calls on inputs that the candidate has never seen, the same again, and new ones between them.

    Raises:
        Failure: contents seen before are answered faster, so answers are kept somewhere.
    """
    first = new = again = math.inf
    order: list[int] = []
    unusual = True
    for attempt in range(_ATTEMPTS):
        if unusual:
            fresh = unseen.take()
            order = [index for index in range(len(fresh)) for _ in range(_ROUNDS)]
            cell.hold(fresh)
            del fresh
            first = min(first, *cell.time(order[::_ROUNDS], new=False))
        new, again = min(new, *cell.time(order)), min(again, *cell.time(order, new=False))
        unusual = first > _CACHE_GAIN * again + _HOST_US[backend]
        dearer = new > _SEEN_GAIN[backend] * again and new > again + _SEEN_US
        if attempt > 0 and not unusual and not dearer:
            return
    message = f"inputs never seen take {max(first, new):.1f} µs, the same again {again:.1f} µs"
    raise clocks_disagree("cache", message, again / max(first, new), backend, busy)
