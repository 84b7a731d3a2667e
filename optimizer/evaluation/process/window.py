"""Memory that judge and cell both see, pinned, so that a CUDA device copies to and from it at full speed.

Slabs cost the kernel fresh pages on every message and the driver a copy through its own buffers: seconds for large
tensors. A window is made once and used for all messages of a cell. Both sides write to it in turns, so whoever reads
copies first and looks at the copy.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optimizer.evaluation.process.slab import arranged, entries_of, parts_of, place, view

if TYPE_CHECKING:
    import torch

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_GRAIN = 1 << 21


class Window:
    """A mapping of a memory file that keeps its size.

    Args:
        fd: of the file; the window closes it.
        pinned: lock its pages for the CUDA device of this process. A driver that refuses makes copies slow, not wrong.
    """

    def __init__(self, fd: int, *, pinned: bool) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, self.size)
        self._pinned = pinned and _registered(self._memory)

    @classmethod
    def of_size(cls, size: int, *, pinned: bool) -> Window:
        """A new window of at least ``size`` bytes, whose size nobody can change."""
        fd = os.memfd_create("window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(-(-size // _GRAIN), 1) * _GRAIN)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd, pinned=pinned)

    def write(self, tensors: Sequence[torch.Tensor]) -> list[dict[str, Any]] | None:
        """Copy tensors in, over what was there; one entry a tensor, or None when they do not fit."""
        dense, offsets, end = arranged(tensors)
        if end > self.size:
            return None
        place(dense, offsets, self._memory)
        return entries_of(dense, offsets)

    def read(self, entries: Sequence[Mapping[str, Any]], device: str, limit_bytes: int) -> list[torch.Tensor]:
        """Copies on ``device`` of the tensors that ``entries`` describe.

        Raises:
            SlabError: an entry is malformed, or past the window's or the limit's end.
        """
        parts = parts_of(entries, limit_bytes)
        copies = [view(self._memory, part).to(device, copy=True) for part in parts]
        return [copy.as_strided(part.shape, part.stride) for copy, part in zip(copies, parts, strict=True)]

    def close(self) -> None:
        """Unpin and forget; the memory goes when the other side has closed it too."""
        if self._pinned:
            _unregister(self._memory)
        os.close(self.fd)


def needed(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes that tensors take in a window."""
    return arranged(tensors)[2]


def _address(memory: mmap.mmap) -> int:
    import torch

    return int(torch.frombuffer(memory, dtype=torch.uint8).data_ptr())


def _registered(memory: mmap.mmap) -> bool:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(_address(memory), len(memory), 0)) == 0


def _unregister(memory: mmap.mmap) -> None:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(_address(memory))
