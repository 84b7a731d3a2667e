"""Values between judge and cell: template pickled by the judge, tensors in slabs or, on a CUDA device, in a window."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from optimizer.evaluation.process.slab import read_slab, write_slab
from optimizer.evaluation.process.values import join, split
from optimizer.evaluation.process.window import Window, needed

_LIMIT = 1 << 40
Packed = tuple[dict[str, Any], list[int]]
"""A message and the descriptors that go with it."""


class Sender(Protocol):
    """The judge's end; implementations: :class:`SlabSender`, :class:`WindowSender`.

    Contract: what ``packed`` yields is valid inside the block. ``read`` gives tensors that the other side can not
    change any more, and raises ``SlabError``, ``KeyError``, ``IndexError`` or ``TypeError`` for a reply that is none.
    """

    def packed(self, values: Any) -> contextlib.AbstractContextManager[Packed]:
        """Nested values as a message; raises ``ValueError`` for what can not travel."""
        ...

    def read(self, reply: Mapping[str, Any], fds: Sequence[int], key: str, limit: int) -> list[Any]:
        """Tensors under ``key`` (``tensors`` or ``inputs``) of a reply, of at most ``limit`` bytes."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class Receiver(Protocol):
    """The cell's end."""

    def unpack(self, message: Mapping[str, Any], fds: Sequence[int]) -> Any:
        """The values, every tensor at an address of its own on the cell's device."""
        ...

    def deliver(self, tensors: list[Any], inputs: list[Any]) -> Packed:
        """Both lists as fields of a reply."""
        ...


class SlabSender:
    """A slab a message."""

    @contextlib.contextmanager
    def packed(self, values: Any) -> Iterator[Packed]:
        """See :class:`Sender`."""
        template, tensors = split(values)
        message: dict[str, Any] = {"template": _pickled(template)}
        fd, message["tensors"] = write_slab(tensors)
        try:
            yield message, [fd]
        finally:
            os.close(fd)

    def read(self, reply: Mapping[str, Any], fds: Sequence[int], key: str, limit: int) -> list[Any]:
        """See :class:`Sender`."""
        return read_slab(fds[_SLAB_OF[key]], reply[key], limit)

    def close(self) -> None:
        """See :class:`Sender`."""


class SlabReceiver:
    """A slab a list of tensors."""

    def unpack(self, message: Mapping[str, Any], fds: Sequence[int]) -> Any:
        """See :class:`Receiver`."""
        return _joined(message, read_slab(fds[0], message["tensors"], _LIMIT))

    def deliver(self, tensors: list[Any], inputs: list[Any]) -> Packed:
        """See :class:`Receiver`."""
        (first, entries), (second, left) = write_slab(tensors), write_slab(inputs)
        return {"tensors": entries, "inputs": left}, [first, second]


class WindowSender:
    """One window for all messages, grown as values need; a reply that does not fit comes in slabs."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        self._slabs = SlabSender()
        self._window: Window | None = None
        self._reply_bytes = 0

    @contextlib.contextmanager
    def packed(self, values: Any) -> Iterator[Packed]:
        """See :class:`Sender`."""
        template, tensors = split(values)
        message: dict[str, Any] = {"template": _pickled(template)}
        size = max(2 * needed(tensors), self._reply_bytes)  # a reply holds the inputs as they were left, and outputs
        fds = []
        if self._window is None or self._window.size < size:
            self.close()
            self._window = Window.of_size(size, pinned=self._device == "cuda")
            fds.append(self._window.fd)
        message["tensors"] = self._window.write(tensors)
        yield message, fds

    def read(self, reply: Mapping[str, Any], fds: Sequence[int], key: str, limit: int) -> list[Any]:
        """See :class:`Sender`."""
        if fds:
            self._reply_bytes = max(self._reply_bytes, sum(os.fstat(fd).st_size for fd in fds))
            return [tensor.to(self._device) for tensor in self._slabs.read(reply, fds, key, limit)]
        if self._window is None:
            raise TypeError("a reply without tensors")
        return self._window.read(reply[key], self._device, limit)

    def close(self) -> None:
        """See :class:`Sender`."""
        if self._window is not None:
            self._window.close()
            self._window = None


class WindowReceiver:
    """The other end of a :class:`WindowSender`."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        self._slabs = SlabReceiver()
        self._window: Window | None = None

    def unpack(self, message: Mapping[str, Any], fds: Sequence[int]) -> Any:
        """See :class:`Receiver`; a descriptor brings a new window."""
        if fds:
            if self._window is not None:
                self._window.close()
            self._window = Window(os.dup(fds[0]), pinned=self._device == "cuda")
        assert self._window is not None
        return _joined(message, self._window.read(message["tensors"], self._device, _LIMIT))

    def deliver(self, tensors: list[Any], inputs: list[Any]) -> Packed:
        """See :class:`Receiver`."""
        entries = None if self._window is None else self._window.write([*tensors, *inputs])
        if entries is None:
            return self._slabs.deliver(tensors, inputs)
        return {"tensors": entries[: len(tensors)], "inputs": entries[len(tensors) :]}, []


def sender_for(backend: str) -> Sender:
    """The judge's end for a backend."""
    return WindowSender() if backend == "cuda" else SlabSender()


def receiver_for(backend: str) -> Receiver:
    """The cell's end for a backend."""
    return WindowReceiver() if backend == "cuda" else SlabReceiver()


_SLAB_OF = {"tensors": 0, "inputs": 1}
"""Which of a reply's descriptors holds what."""


def _joined(message: Mapping[str, Any], tensors: list[Any]) -> Any:
    return join(pickle.loads(base64.b64decode(message["template"])), tensors)


def _pickled(template: Any) -> str:
    try:
        return base64.b64encode(pickle.dumps(template)).decode()
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise ValueError(f"task values cannot be sent to the candidate: {problem}") from problem
