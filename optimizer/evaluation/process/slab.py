"""Tensors of one message in anonymous shared memory, described by plain data.

The writer puts each tensor's storage span into a memfd and seals it. The reader maps a sealed one,
copying nothing; one that its writer left open is copied out with ``pread``, so that a file changed or
shortened later is a short read and neither a bus error nor another answer.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class SlabError(ValueError):
    """A slab's description does not fit its contents or what the reader accepts."""


def write_slab(tensors: Sequence[torch.Tensor]) -> tuple[int, list[dict[str, Any]]]:
    """Copy tensors into a new memfd; return its descriptor and one entry a tensor.

    Entries hold dtype, shape, stride (elements) and offset (bytes); dense layouts are kept, others
    become contiguous.
    """
    dense, offsets, end = arranged(tensors)
    fd = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if end:
        os.ftruncate(fd, end)
        with mmap.mmap(fd, end) as memory:
            place(dense, offsets, memory)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd, entries_of(dense, offsets)


def arranged(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int], int]:
    """Tensors without gaps, an aligned offset for each, and the bytes that all of them take."""
    dense = [_dense(tensor.detach()) for tensor in tensors]
    offsets, end = [], 0
    for tensor in dense:
        offsets.append(end)
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return dense, offsets, end


def entries_of(dense: Sequence[torch.Tensor], offsets: Sequence[int]) -> list[dict[str, Any]]:
    """What a reader must know of each tensor."""
    return [
        {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": offset,
        }
        for tensor, offset in zip(dense, offsets, strict=True)
    ]


def read_slab(fd: int, entries: Sequence[Mapping[str, Any]], limit_bytes: int) -> list[torch.Tensor]:
    """Tensors on the CPU from a slab.

    Raises:
        SlabError: an entry is malformed, larger than ``limit_bytes`` in all, or past the file's end.
    """
    memory = _mapped(fd)
    return [
        (_read(fd, part.offset, part.size, part.dtype) if memory is None else view(memory, part)).as_strided(
            part.shape, part.stride
        )
        for part in parts_of(entries, limit_bytes)
    ]


class Part(NamedTuple):
    """One tensor of a slab: ``offset`` and ``size`` in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int


def parts_of(entries: Sequence[Mapping[str, Any]], limit_bytes: int) -> list[Part]:
    """Entries that nobody has vouched for, checked.

    Raises:
        SlabError: one is malformed, or all together are larger than ``limit_bytes``.
    """
    parts = []
    left = limit_bytes
    for entry in entries:
        dtype, shape, stride, offset = _checked(entry)
        size = _span(shape, stride) * dtype.itemsize
        left -= size
        if left < 0:
            raise SlabError(f"more than {limit_bytes} bytes of tensors")
        parts.append(Part(dtype, shape, stride, offset, size))
    return parts


def _mapped(fd: int) -> mmap.mmap | None:
    """A private mapping of a slab that nobody can change any more; None for any other."""
    size = os.fstat(fd).st_size
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return None
    if not sealed or size == 0:
        return None
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def view(memory: mmap.mmap, part: Part) -> torch.Tensor:
    """A part's memory as a flat tensor, not copied.

    Raises:
        SlabError: it is not inside the mapping.
    """
    import torch

    if not part.size:
        return torch.empty(0, dtype=part.dtype)
    if part.offset % _ALIGNMENT or part.offset + part.size > len(memory):
        raise SlabError("slab ends before its tensors")
    return torch.frombuffer(memory, dtype=part.dtype, count=part.size // part.dtype.itemsize, offset=part.offset)


def _read(fd: int, offset: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    import torch

    buffer = bytearray(size)
    view = memoryview(buffer)
    done = 0
    while done < size:
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            raise SlabError("slab ends before its tensors")
        done += got
    if not size:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)


def _checked(entry: Mapping[str, Any]) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]:
    import torch

    dtype = getattr(torch, str(entry.get("dtype")), None)
    shape, stride, offset = entry.get("shape"), entry.get("stride"), entry.get("offset")
    if not isinstance(dtype, torch.dtype) or not isinstance(shape, list) or not isinstance(stride, list):
        raise SlabError(f"no tensor entry: {entry!r:.200}")
    numbers = [*shape, *stride, offset]
    if not all(isinstance(number, int) and 0 <= number < 1 << 48 for number in numbers) or len(shape) != len(stride):
        raise SlabError(f"no tensor entry: {entry!r:.200}")
    return dtype, tuple(shape), tuple(stride), int(str(offset))


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    if math.prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if _span(plain.shape, plain.stride()) != plain.numel():
        plain = plain.contiguous()
    return plain.resolve_conj().resolve_neg()


def place(dense: Sequence[torch.Tensor], offsets: Sequence[int], memory: mmap.mmap) -> None:
    """Copy dense tensors, from whatever device, to their offsets in a mapping."""
    import torch

    for tensor, offset in zip(dense, offsets, strict=True):
        if count := tensor.numel():
            target = torch.frombuffer(memory, dtype=tensor.dtype, count=count, offset=offset)
            target.copy_(tensor.as_strided((count,), (1,)))
