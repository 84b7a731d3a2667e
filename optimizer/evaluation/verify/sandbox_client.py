"""The verifier's side of a sandbox: requests with time limits, errors as typed failures."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from artifacts.measurement import Outcome
from optimizer.evaluation.sandbox.channel import Channel, ChannelClosedError, ChannelTimeoutError
from optimizer.evaluation.sandbox.recording import Operator
from optimizer.evaluation.sandbox.shared_buffers import SharedBufferError
from optimizer.evaluation.sandbox.torch_state import give_back
from optimizer.evaluation.sandbox.transport import VerifierEnd
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.reference import Case

_FACTORS = (0.95, 1.0)
"""Of inputs of timed calls: toward zero, since some tasks take numbers of an interval only."""
_ALL_THREADS = 2
"""Kind of a process's CPU clock in its clock id: scheduler time of all threads (see clock_getcpuclockid(3))."""


_ALLOCATING = frozenset(
    {"put", "construct", "call", "twice", "again", "observe", "void", "echo", "hold", "time", "linger"}
)
"""Requests for which the process takes memory of its device; ``run``, which is timed from here, makes room itself."""
_OVERHEAD_S = 1.0
_CALLS_OF = {"again": 8}
"""Requests in which the process calls the candidate more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What one call gave: output facts and tensors, extra facts."""

    facts: dict[str, Any]
    tensors: list[Any]
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


class Constructed(NamedTuple):
    """How a candidate was built.

    Attributes:
        left: parameters of the reference that found no place in it.
        on_host: whether its constructor ran on the host, where other numbers are drawn than on the device.
    """

    left: tuple[str, ...]
    on_host: bool


class TimedOutput(NamedTuple):
    """What a timed call gave: on which variant of the inputs, times which factor."""

    variant: int
    factor: float
    facts: dict[str, Any]
    tensors: list[Any]


class SandboxClient:
    """One candidate process.

    Attributes:
        call_s: seconds that one call of the candidate may take.
        peak_bytes: of device memory that the process has reserved at most, as it says itself.

    Args:
        channel: to the process; ``backend``: where its tensors lie and ours shall.
        timeout_s: limit of one request in seconds.
        pid: of the process; 0 when its CPU time is of no interest.
        output_limit: bytes that one delivery may hold.
        is_started: whether it has its CUDA device already.
        tf32: whether the candidate may use TF32; ``dtype``: to which its parameters are cast, empty for not at all.
    """

    def __init__(
        self,
        channel: Channel,
        timeout_s: float,
        pid: int = 0,
        backend: str = "cpu",
        output_limit: int = 1 << 36,
        is_started: bool = False,
        tf32: bool = False,
        dtype: str = "",
    ) -> None:
        self._channel = channel
        self._backend = backend
        self._shared = VerifierEnd(backend)
        self._pid = pid
        self._timeout_s = timeout_s
        self._stage = "run"
        self.call_s = math.inf
        self.peak_bytes = 0
        self._is_started = is_started
        self._arithmetic = {"tf32": tf32, "dtype": dtype}
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
        self.post({"do": "start"})

    def started(self) -> None:
        """Wait until the process has its device.

        Raises:
            Failure: it has not got it, which says nothing about the candidate.
        """
        if not self._is_started:
            self._stage = "infrastructure"
            self.answered()
            self._stage = "run"
            self._is_started = True

    def close(self) -> None:
        """Hang up, and give the memory back that values travelled through."""
        self._channel.close()
        self._shared.close()

    def load(self, source: str) -> None:
        """Import the candidate."""
        self._request({"do": "load", "source": source, **self._arithmetic}, stage="build")

    def construct(self, case: Case) -> Constructed:
        """Build ``ModelNew`` with a case's arguments, parameters, buffers and seed."""
        message = {"do": "construct", "seed": case.trial.seed, "on_host": case.on_host}
        reply = self._send_values(message, (case.arguments, case.parameters, case.buffers))
        left = tuple(str(name) for name in reply.get("left", []))
        return Constructed(left=left, on_host=reply.get("on_host") is True)

    def call(self, inputs: Sequence[Any], mode: str = "call") -> Delivery:
        """One call; ``mode`` is call, void (own kernels destroyed), echo, twice or again (see ``Session``)."""
        with self._allowing(_CALLS_OF.get(mode, 1)):
            reply = self._send_values({"do": mode}, list(inputs))
        return self._delivery(reply)

    def digests(self, key: int) -> list[Any]:
        """What the candidate's process makes of the last call's inputs as they are now; see ``digest``."""
        found = self._request({"do": "digest", "key": key}).get("digests")
        return found if isinstance(found, list) else []

    def release(self) -> None:
        """Let the process give back what it holds for timing, so that others have room on its device."""
        self._request({"do": "release"})

    def observe(self, inputs: Sequence[Any]) -> list[Operator]:
        """Operators of torch that a call goes through."""
        reply = self._send_values({"do": "observe"}, list(inputs))
        return [Operator(str(space), str(name), int(work)) for space, name, work in reply.get("operators", [])]

    def hold(self, variants: Sequence[Sequence[Any]], *, first: bool = True) -> None:
        """Keep inputs for timing, in place of those held before or (not ``first``) beside them."""
        for index, values in enumerate(variants):
            self._send_values({"do": "hold", "first": first and index == 0}, list(values))

    def time(self, order: Sequence[int], *, new: bool = True) -> list[float]:
        """Microseconds, as the candidate's process reports them, of one cold call for each entry.

        ``new``: floating-point inputs are held ones times a factor, so that no call sees what another has seen.
        """
        with self._allowing(len(order)):
            reply = self._request({"do": "time", **self._calls(order, new=new)})
        return _times(reply, "samples_us", len(order))

    def linger(self, order: Sequence[int]) -> float:
        """Least microseconds that the device goes on after one of the calls, beyond what it does after none."""
        with self._allowing(len(order)):
            reply = self._request({"do": "linger", **self._calls(order)})
        calls, nothing = (_times(reply, name, len(order)) for name in ("calls_us", "nothing_us"))
        return min(calls) - min(nothing)

    def run(self, order: Sequence[int], count: int) -> tuple[float, float]:
        """Wall and CPU seconds, both as the verifier sees them, for ``count`` back-to-back calls in turns."""
        message = self._calls(order)
        give_back(self._backend)
        wall, cpu = time.perf_counter(), self.cpu_s()
        with self._allowing(count):
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
        delivery = self._delivery(self._request({"do": "fetch"}))
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

    def post(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """See :class:`optimizer.evaluation.sandbox.transport.Link`; the process then finds what we do not need."""
        if message["do"] in _ALLOCATING:
            give_back(self._backend)
        try:
            self._channel.send(message, fds)
        except ChannelClosedError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, self._stage, "the candidate's process ended", gone=True) from problem

    def answered(self) -> dict[str, Any]:
        """See :class:`optimizer.evaluation.sandbox.transport.Link`."""
        try:
            reply, received = self._channel.receive(self._timeout_s)
        except ChannelTimeoutError as problem:
            reason = f"the candidate did not finish within {self._timeout_s:.3g} s"
            raise Failure(Outcome.TIMEOUT, self._stage, reason, final=True) from problem
        except ChannelClosedError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, self._stage, "the candidate's process ended", gone=True) from problem
        for fd in received:
            os.close(fd)
        notes = reply.pop("build_notes", [])
        self.layers = tuple(str(layer) for layer in reply.pop("layers", []))
        self.build_notes = tuple(str(note) for note in notes)
        peak = reply.pop("peak_bytes", 0)
        self.peak_bytes = max(self.peak_bytes, peak) if isinstance(peak, int) else self.peak_bytes
        if "error" in reply:
            raise Failure(_outcome(reply), self._stage, str(reply.get("text")), final=reply.get("final") is True)
        return reply

    @contextlib.contextmanager
    def _allowing(self, calls: int) -> Iterator[None]:
        """Inside the block the process may take what so many calls may, and no longer."""
        usual = self._timeout_s
        self._timeout_s = min(usual, _OVERHEAD_S + calls * self.call_s)
        try:
            yield
        finally:
            self._timeout_s = usual

    def _send_values(self, message: dict[str, Any], values: Any) -> dict[str, Any]:
        self._shared.send(message, values, self)
        return self.answered()

    def _delivery(self, reply: dict[str, Any]) -> Delivery:
        if not isinstance(reply.get("output"), dict):
            raise Failure(Outcome.WRONG_RESULT, "correctness", "output cannot be read: it is not described")
        try:
            tensors = self._shared.read(reply["tensors"], self.output_limit, self)
        except (SharedBufferError, KeyError, AttributeError, TypeError) as problem:
            raise Failure(Outcome.WRONG_RESULT, "correctness", f"output cannot be read: {problem}") from problem
        extra = {key: value for key, value in reply.items() if key not in ("output", "tensors")}
        return Delivery(facts=reply["output"], tensors=tensors, extra=extra)

    def _request(self, message: dict[str, Any], stage: str = "run") -> dict[str, Any]:
        self._stage = stage
        try:
            self.post(message)
            return self.answered()
        finally:
            self._stage = "run"


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
