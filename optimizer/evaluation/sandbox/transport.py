"""Values between verifier and sandbox: a template pickled by the verifier, tensors as a stream through shared memory.

The memory lies where the tensors do: on the CUDA device, or on the host where there is none or it can not share.
The verifier makes the memory, so that no limit on the sandbox's files meets an honest output, and decides how
much of a stream travels at a time. A stream that does not fit travels in pieces through both halves in turns: while
one side copies from one half, the other side fills the other.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from optimizer.evaluation.sandbox.device_memory import DeviceMemory
from optimizer.evaluation.sandbox.shared_buffers import SharedBuffer, Stream, parts_of, stream_bytes
from optimizer.evaluation.sandbox.values import join, split

_LIMIT = 1 << 40
_MOST_BYTES = 128 << 20
"""Of shared memory: pinning more takes longer than it saves."""
_GRAIN = 64


class NotSharedError(Exception):
    """This process can not map the memory that it was given; that says nothing about a candidate."""


class Link(Protocol):
    """How a verifier talks to its sandbox; implemented by ``SandboxClient``."""

    def post(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request and do not wait."""
        ...

    def answered(self) -> dict[str, Any]:
        """Wait for the answer to the oldest request."""
        ...


class VerifierEnd:
    """The verifier's end of the shared memory, which grows as values need.

    Args:
        device: where tensors that are read come to lie, ``cpu`` or ``cuda``.
        most_bytes: of shared memory.
    """

    def __init__(self, device: str, most_bytes: int = _MOST_BYTES) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._buffer: SharedBuffer | DeviceMemory | None = None
        self._unknown: list[int] = []
        """Descriptors that the sandbox has not been given yet."""

    def send(self, message: Mapping[str, Any], values: Any, link: Link) -> None:
        """Send values with a request, whose answer the caller has to wait for.

        Raises:
            ValueError: a value beside the tensors can not travel.
        """
        template, tensors = split(values)
        stream = Stream.of(tensors)
        fields: dict[str, Any] = {"template": _pickled(template), "tensors": stream.entries()}
        self._make_room(stream.size)
        assert self._buffer is not None
        pieces = self._pieces(stream.size)
        last = pieces.pop()
        waiting = False
        for number, (start, stop, base) in enumerate(pieces):
            stream.write(self._buffer.memory[base:], start, stop)
            if waiting:
                link.answered()
            piece = {"do": "put", "piece": [start, stop, base]}
            self._post(link, piece | ({"tensors": fields["tensors"]} if number == 0 else {}))
            waiting = True
        stream.write(self._buffer.memory[last[2] :], last[0], last[1])
        if waiting:
            link.answered()
        self._post(link, {**message, "values": {**fields, "piece": list(last)}})

    def read(self, entries: Sequence[Mapping[str, Any]], limit: int, link: Link) -> list[Any]:
        """Copies of the tensors that a reply offers, which the sandbox can not change any more.

        Raises:
            SharedBufferError, TypeError, AttributeError: ``entries`` describe no tensors, or more than ``limit`` bytes.
        """
        parts = parts_of(entries, limit)
        size = stream_bytes(parts)
        stream = Stream.to_fill(parts, self._device)
        if self._buffer is not None and size <= self._buffer.size:  # it came with the reply
            stream.read(self._buffer.memory, 0, size)
            return stream.tensors()
        self._make_room(size)
        assert self._buffer is not None
        pieces = self._pieces(size)
        self._pull(link, pieces[0])
        for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
            link.answered()
            if following is not None:
                self._pull(link, following)
            stream.read(self._buffer.memory[piece[2] :], piece[0], piece[1])
        return stream.tensors()

    def close(self) -> None:
        """Give the memory back."""
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None
        self._unknown = []

    def _pull(self, link: Link, piece: tuple[int, int, int]) -> None:
        self._post(link, {"do": "pull", "piece": list(piece)})

    def _post(self, link: Link, message: Mapping[str, Any]) -> None:
        fds, self._unknown = self._unknown, []
        link.post({**message, "buffer": self._described()} if fds else message, fds)

    def _described(self) -> dict[str, Any]:
        assert self._buffer is not None
        return {"device": isinstance(self._buffer, DeviceMemory), "size": self._buffer.size}

    def _make_room(self, size: int) -> None:
        wanted = min(2 * size, self._most_bytes)  # outputs are often as large as inputs
        if self._buffer is None or self._buffer.size < wanted:
            self.close()
            self._buffer = _new_buffer(wanted, self._device)
            self._unknown = [self._buffer.fd]

    def _pieces(self, size: int) -> list[tuple[int, int, int]]:
        """Start and stop in the stream and place in the buffer of each piece; at least one."""
        assert self._buffer is not None
        if size <= self._buffer.size:
            return [(0, size, 0)]
        half = self._buffer.size // 2 // _GRAIN * _GRAIN
        starts = range(0, size, half)
        return [(start, min(start + half, size), number % 2 * half) for number, start in enumerate(starts)]


class SandboxEnd:
    """The sandbox's end: every tensor comes to lie at an address of its own on ``device``."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._buffer: SharedBuffer | DeviceMemory | None = None
        self._coming: Stream | None = None
        self._offered: Stream | None = None

    def use(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Take the descriptor of a new buffer that came with a request.

        Raises:
            NotSharedError: the device's driver refuses it here.
        """
        if buffer := message.get("buffer"):
            if self._buffer is not None:
                self._buffer.close()
            fd = os.dup(fds[0])
            if buffer["device"]:
                self._buffer = _mapped(fd, buffer["size"])
            else:
                self._buffer = SharedBuffer(fd, pinned=self._device == "cuda")

    def put(self, message: Mapping[str, Any]) -> None:
        """Take a piece of a stream of which more follows."""
        if "tensors" in message:
            self._coming = Stream.to_fill(parts_of(message["tensors"], _LIMIT), self._device)
        assert self._coming is not None
        self._copy_in(self._coming, message["piece"])

    def unpack(self, message: Mapping[str, Any]) -> Any:
        """The values, whose last piece comes with this."""
        stream, self._coming = self._coming, None
        if stream is None:
            stream = Stream.to_fill(parts_of(message["tensors"], _LIMIT), self._device)
        self._copy_in(stream, message["piece"])
        return join(pickle.loads(base64.b64decode(message["template"])), stream.tensors())

    def offer(self, tensors: list[Any]) -> list[dict[str, Any]]:
        """Describe tensors; what the buffer does not hold whole is pulled piece by piece."""
        self._offered = Stream.of(tensors)
        entries = self._offered.entries()
        if self._buffer is not None and self._offered.size <= self._buffer.size:
            self._offered.write(self._buffer.memory, 0, self._offered.size)
            self.forget()
        return entries

    def pull(self, message: Mapping[str, Any]) -> None:
        """Put a piece of what was offered into the buffer; after the last one it is forgotten."""
        assert self._buffer is not None
        assert self._offered is not None
        start, stop, base = message["piece"]
        self._offered.write(self._buffer.memory[base:], start, stop)
        if stop >= self._offered.size:
            self.forget()

    def forget(self) -> None:
        """Let go of what was offered."""
        self._offered = None

    def _copy_in(self, stream: Stream, piece: Sequence[int]) -> None:
        assert self._buffer is not None
        start, stop, base = piece
        stream.read(self._buffer.memory[base:], start, stop)


def _new_buffer(size: int, device: str) -> SharedBuffer | DeviceMemory:
    if device == "cuda":
        with contextlib.suppress(OSError):
            return DeviceMemory.of_size(size)
    return SharedBuffer.of_size(size, pinned=device == "cuda")


def _mapped(fd: int, size: int) -> DeviceMemory:
    try:
        return DeviceMemory(fd, size)
    except OSError as problem:
        raise NotSharedError(f"the device's memory cannot be mapped by the sandbox: {problem}") from problem


def _pickled(template: Any) -> str:
    try:
        return base64.b64encode(pickle.dumps(template)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise ValueError(f"task values cannot be sent to the candidate: {problem}") from problem
