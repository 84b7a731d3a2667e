"""The judge's side of a cell: requests with time limits, errors as typed failures."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from artifacts.outcome import Outcome
from optimizer.evaluation.cell.record import Operator
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.process.channel import Channel, ChannelClosedError, ChannelTimeoutError
from optimizer.evaluation.process.slab import SlabError
from optimizer.evaluation.process.transport import Sender, SlabSender

_FACTORS = (0.95, 1.0)
"""Of inputs of timed calls: toward zero, since some tasks take numbers of an interval only."""
_ALL_THREADS = 2
"""Kind of a process's CPU clock in its clock id: scheduler time of all threads (see clock_getcpuclockid(3))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one call gave: output facts and tensors, the inputs as they were left, extra facts."""

    facts: dict[str, Any]
    tensors: list[Any]
    inputs: list[Any]
    extra: dict[str, Any]

    def parts(self) -> list[tuple[dict[str, Any], list[Any]]]:
        """Facts and tensors of each item of a sequence of outputs; empty when they do not add up."""
        items = self.facts.get("items")
        if not isinstance(items, list):
            return []
        left = list(self.tensors)
        parts = []
        for item in items:
            count = count_tensors(item)
            parts.append((item, left[:count]))
            left = left[count:]
        return parts if not left else []


class TimedOutput(NamedTuple):
    """What a timed call gave: on which variant of the inputs, times which factor."""

    variant: int
    factor: float
    facts: dict[str, Any]
    tensors: list[Any]


class Cell:
    """One candidate process.

    Args:
        channel: to the process; ``sender``: how values travel on it.
        timeout_s: limit of one request in seconds.
        pid: of the process; 0 when its CPU time is of no interest.
        output_limit: bytes that one delivery may hold.
        is_started: whether it has its CUDA device already.
    """

    def __init__(
        self,
        channel: Channel,
        timeout_s: float,
        pid: int = 0,
        output_limit: int = 1 << 34,
        sender: Sender | None = None,
        is_started: bool = False,
    ) -> None:
        self._channel = channel
        self._sender = sender or SlabSender()
        self._pid = pid
        self._timeout_s = timeout_s
        self._is_started = is_started
        self.output_limit = output_limit
        self._random = random.SystemRandom()
        self._asked: list[tuple[int, float]] = []
        self.build_notes: tuple[str, ...] = ()
        self.layers: tuple[str, ...] = ()

    def start(self) -> None:
        """Let a process on a CUDA device use it, and go on meanwhile; :meth:`started` waits for it.

        Raises:
            Failure: the process is gone.
        """
        if self._is_started:
            return
        try:
            self._channel.send({"do": "start"})
        except ChannelClosedError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, "build", "the candidate's process ended", gone=True) from problem

    def started(self) -> None:
        """Wait until the process has its device.

        Raises:
            Failure: it has not got it, which says nothing about the candidate.
        """
        if not self._is_started:
            self._answered("infrastructure")
            self._is_started = True

    def close(self) -> None:
        """Hang up, and give the memory back that values travelled through."""
        self._channel.close()
        self._sender.close()

    def load(self, source: str) -> None:
        """Import the candidate."""
        self._request({"do": "load", "source": source}, stage="build")

    def construct(self, arguments: Any, parameters: Any, buffers: Any, seed: int) -> str:
        """Build ``ModelNew``; return how the parameters fitted (names, order, none)."""
        reply = self._send_values({"do": "construct", "seed": seed}, (arguments, parameters, buffers))
        return str(reply.get("mapping"))

    def call(self, inputs: Sequence[Any], mode: str = "call") -> Delivery:
        """One call; ``mode`` is call, void (own kernels destroyed) or twice (a pair of inputs)."""
        with self._sender.packed(list(inputs)) as (message, fds):
            return self._delivery({"do": mode, "values": message}, fds)

    def observe(self, inputs: Sequence[Any]) -> list[Operator]:
        """Operators of torch that a call goes through."""
        reply = self._send_values({"do": "observe"}, list(inputs))
        return [Operator(str(space), str(name), int(work)) for space, name, work in reply.get("operators", [])]

    def hold(self, variants: Sequence[Sequence[Any]]) -> None:
        """Keep inputs for timing, in place of those held before."""
        for index, values in enumerate(variants):
            self._send_values({"do": "hold", "first": index == 0}, list(values))

    def time(self, order: Sequence[int], *, new: bool = True) -> list[float]:
        """Microseconds, as the candidate's process reports them, of one cold call for each entry.

        ``new``: floating-point inputs are held ones times a factor, so that no call sees what another has seen.
        """
        reply, _ = self._request({"do": "time", **self._calls(order, new=new)})
        return _times(reply, "samples_us", len(order))

    def linger(self, order: Sequence[int]) -> float:
        """Least microseconds that the device goes on after one of the calls, beyond what it does after none."""
        reply, _ = self._request({"do": "linger", **self._calls(order)})
        calls, nothing = (_times(reply, name, len(order)) for name in ("calls_us", "nothing_us"))
        return min(calls) - min(nothing)

    def run(self, order: Sequence[int], count: int) -> tuple[float, float]:
        """Wall and CPU seconds, both as the judge sees them, for ``count`` back-to-back calls in turns."""
        message = self._calls(order)
        wall, cpu = time.perf_counter(), self.cpu_s()
        self._request({"do": "run", **message, "count": count})
        return time.perf_counter() - wall, self.cpu_s() - cpu

    def cpu_s(self) -> float:
        """CPU seconds of all threads of the process, from the kernel; 0 without a process."""
        if not self._pid:
            return 0.0
        try:
            return time.clock_gettime((~self._pid << 3) | _ALL_THREADS)
        except OSError:
            return 0.0

    def fetch(self) -> list[TimedOutput]:
        """The outputs of the last timed calls."""
        delivery = self._delivery({"do": "fetch"}, [])
        places, parts = delivery.extra.get("calls"), delivery.parts()
        known = range(len(self._asked))
        if not isinstance(places, list) or len(places) != len(parts) or not all(place in known for place in places):
            raise Failure(Outcome.REJECTED, "timing", "the candidate's process broke the timing protocol")
        asked = [self._asked[place] for place in places]
        return [TimedOutput(*call, *part) for call, part in zip(asked, parts, strict=True)]

    def _calls(self, order: Sequence[int], *, new: bool = True) -> dict[str, Any]:
        """Fields of a request for timed calls; what was asked for is remembered."""
        factors = [self._random.uniform(*_FACTORS) if new else 1.0 for _ in order]
        self._asked = list(zip(order, factors, strict=True))
        return {"order": list(order), "factors": factors}

    def _send_values(self, message: dict[str, Any], values: Any) -> dict[str, Any]:
        with self._sender.packed(values) as (packed, fds):
            reply, received = self._request({**message, "values": packed}, fds)
        with _closing(received):
            return reply

    def _delivery(self, message: dict[str, Any], fds: Sequence[int]) -> Delivery:
        reply, received = self._request(message, fds)
        with _closing(received):
            try:
                tensors = self._sender.read(reply, received, "tensors", self.output_limit)
                inputs = self._sender.read(reply, received, "inputs", 1 << 40)
            except (SlabError, KeyError, IndexError, TypeError) as problem:
                raise Failure(Outcome.WRONG_RESULT, "correctness", f"output cannot be read: {problem}") from problem
        known = {"output", "tensors", "inputs"}
        extra = {key: value for key, value in reply.items() if key not in known}
        if not isinstance(reply.get("output"), dict):
            raise Failure(Outcome.WRONG_RESULT, "correctness", "output cannot be read: it is not described")
        return Delivery(facts=reply["output"], tensors=tensors, inputs=inputs, extra=extra)

    def _request(
        self, message: dict[str, Any], fds: Sequence[int] = (), stage: str = "run"
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            self._channel.send(message, fds)
        except ChannelClosedError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, stage, "the candidate's process ended", gone=True) from problem
        return self._answered(stage)

    def _answered(self, stage: str) -> tuple[dict[str, Any], list[int]]:
        try:
            reply, received = self._channel.receive(self._timeout_s)
        except ChannelTimeoutError as problem:
            raise Failure(
                Outcome.TIMEOUT, stage, f"the candidate did not finish within {self._timeout_s:g} s", final=True
            ) from problem
        except ChannelClosedError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, stage, "the candidate's process ended", gone=True) from problem
        notes = reply.pop("build_notes", [])
        self.layers = tuple(str(layer) for layer in reply.pop("layers", []))
        self.build_notes = tuple(str(note) for note in notes)
        if "error" in reply:
            for fd in received:
                os.close(fd)
            raise Failure(_outcome(reply), stage, str(reply.get("text")), final=reply.get("final") is True)
        return reply, received


def _outcome(reply: dict[str, Any]) -> Outcome:
    """The verdict that a failing process names; one that names none, or a good one, has been tampered with."""
    with contextlib.suppress(ValueError):
        outcome = Outcome(str(reply["error"]))
        if outcome is not Outcome.CORRECT:
            return outcome
    return Outcome.REJECTED


def _times(reply: dict[str, Any], name: str, count: int) -> list[float]:
    times = reply.get(name)
    if not isinstance(times, list) or len(times) != count or not all(map(_is_time, times)):
        raise Failure(Outcome.REJECTED, "timing", "the candidate's process broke the timing protocol")
    return [float(each) for each in times]


def _is_time(sample: object) -> bool:
    return isinstance(sample, (int, float)) and math.isfinite(sample) and sample > 0


def count_tensors(facts: Any) -> int:
    """Tensors in one output's description."""
    if not isinstance(facts, dict):
        return 0
    items = facts.get("items")
    if isinstance(items, dict):
        items = list(items.values())
    if isinstance(items, list):
        return sum(count_tensors(item) for item in items)
    return int(facts.get("kind") == "tensor")


@contextlib.contextmanager
def _closing(fds: Sequence[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)
