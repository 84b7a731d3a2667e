"""Tensors as a stream of bytes through memory that two processes share, described by plain data."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from optimizer.evaluation.sandbox.values import span

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
"""Of tensors in a stream, and of the pieces in which a stream travels: an element is never divided."""


class SharedBufferError(ValueError):
    """A description of tensors that is malformed, or larger than the reader accepts."""


class Part(NamedTuple):
    """One tensor of a stream: ``offset`` and ``size`` in bytes, strides in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int


class Stream:
    """Tensors one after the other, as bytes that are copied piece by piece.

    Args:
        parts: their places; ``flats``: the memory of each as bytes, on whatever device.
    """

    def __init__(self, parts: Sequence[Part], flats: Sequence[torch.Tensor]) -> None:
        self._parts = parts
        self._flats = flats
        self.size = stream_bytes(parts)

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Stream:
        """The stream of given tensors; dense layouts are kept, others become contiguous."""
        dense = [dense_of(tensor.detach()) for tensor in tensors]
        parts, end = [], 0
        for tensor in dense:
            size = tensor.numel() * tensor.element_size()
            parts.append(Part(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), end, size))
            end += _aligned(size)
        return cls(parts, [_bytes(tensor.as_strided((tensor.numel(),), (1,))) for tensor in dense])

    @classmethod
    def to_fill(cls, parts: Sequence[Part], device: str) -> Stream:
        """A stream of new tensors on ``device``, whose contents are to come."""
        import torch

        return cls(parts, [torch.empty(part.size, dtype=torch.uint8, device=device) for part in parts])

    def entries(self) -> list[dict[str, Any]]:
        """What the other side must know of each tensor."""
        return [
            {
                "dtype": str(part.dtype).removeprefix("torch."),
                "shape": list(part.shape),
                "stride": list(part.stride),
                "offset": part.offset,
            }
            for part in self._parts
        ]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors; they share the stream's memory."""
        return [
            flat.view(part.dtype).as_strided(part.shape, part.stride)
            for flat, part in zip(self._flats, self._parts, strict=True)
        ]

    def write(self, memory: torch.Tensor, start: int, stop: int) -> None:
        """Copy the bytes from ``start`` to ``stop`` into shared memory."""
        for flat, place in self._crossing(start, stop):
            memory[place : place + len(flat)].copy_(flat)
        _settled(memory)

    def read(self, memory: torch.Tensor, start: int, stop: int) -> None:
        """Copy shared memory over the bytes from ``start`` to ``stop``."""
        for flat, place in self._crossing(start, stop):
            flat.copy_(memory[place : place + len(flat)])
        _settled(memory)

    def _crossing(self, start: int, stop: int) -> Iterator[tuple[torch.Tensor, int]]:
        """The tensors' bytes between two places of the stream, and how far behind ``start`` they lie."""
        for flat, part in zip(self._flats, self._parts, strict=True):
            first, last = max(start, part.offset), min(stop, part.offset + part.size)
            if first < last:
                yield flat[first - part.offset : last - part.offset], first - start


def _settled(memory: torch.Tensor) -> None:
    """Wait for copies on a device: the other side looks at the memory as soon as it is told to."""
    if memory.is_cuda:
        import torch

        torch.cuda.current_stream().synchronize()


def stream_bytes(parts: Sequence[Part]) -> int:
    """Bytes from the first to the last tensor of a stream, gaps included."""
    return max((part.offset + _aligned(part.size) for part in parts), default=0)


def parts_of(entries: Sequence[Mapping[str, Any]], limit_bytes: int) -> list[Part]:
    """Entries that nobody has vouched for, checked.

    Raises:
        SharedBufferError: one is malformed, or all together are larger than ``limit_bytes``.
    """
    parts = []
    left = limit_bytes
    for entry in entries:
        dtype, shape, stride, offset = _checked(entry)
        size = span(shape, stride) * dtype.itemsize
        left -= size
        if left < 0 or offset > _aligned(limit_bytes) + _ALIGNMENT * len(entries) or offset % _ALIGNMENT:
            raise SharedBufferError(f"more than {limit_bytes} bytes of tensors")
        parts.append(Part(dtype, shape, stride, offset, size))
    return parts


def _checked(entry: Mapping[str, Any]) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]:
    import torch

    dtype = getattr(torch, str(entry.get("dtype")), None)
    shape, stride, offset = entry.get("shape"), entry.get("stride"), entry.get("offset")
    if not isinstance(dtype, torch.dtype) or not isinstance(shape, list) or not isinstance(stride, list):
        raise SharedBufferError(f"no tensor entry: {entry!r:.200}")
    numbers = [*shape, *stride, offset]
    if not all(isinstance(number, int) and 0 <= number < 1 << 48 for number in numbers) or len(shape) != len(stride):
        raise SharedBufferError(f"no tensor entry: {entry!r:.200}")
    return dtype, tuple(shape), tuple(stride), int(str(offset))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it travels: without gaps, in its own layout where that has none."""
    import torch

    plain = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if span(plain.shape, plain.stride()) != plain.numel():
        plain = plain.contiguous()
    return plain.resolve_conj().resolve_neg()


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    import torch

    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8, device=flat.device)


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_GRAIN = 1 << 21


class SharedBuffer:
    """A mapping of a memory file that keeps its size.

    Args:
        fd: of the file; the buffer closes it.
        pinned: lock its pages for the CUDA device of this process. A driver that refuses makes copies slow, not wrong.

    Attributes:
        memory: the mapping as bytes.
    """

    def __init__(self, fd: int, *, pinned: bool) -> None:
        import torch

        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.memory = torch.frombuffer(mmap.mmap(fd, self.size), dtype=torch.uint8)
        self._pinned = pinned and _registered(self.memory)

    @classmethod
    def of_size(cls, size: int, *, pinned: bool) -> SharedBuffer:
        """A new buffer of at least ``size`` bytes, whose size nobody can change."""
        fd = os.memfd_create("buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(-(-size // _GRAIN), 1) * _GRAIN)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, pinned=pinned)

    def close(self) -> None:
        """Unpin and forget; the memory goes when the other side has closed it too."""
        if self._pinned:
            _unregister(self.memory)
        os.close(self.fd)


def _registered(memory: torch.Tensor) -> bool:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(memory.data_ptr(), len(memory), 0)) == 0


def _unregister(memory: torch.Tensor) -> None:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(memory.data_ptr())
