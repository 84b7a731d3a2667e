"""Memory of a device that several processes share: what is large there, and when to give some back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_SPARE_BYTES = 4 << 30
_LARGE_SHARE = 32
_HOST_BYTES = 128 << 30
"""Taken for a host's memory."""


def is_large(tensors: Sequence[Any]) -> bool:
    """Whether tensors had better not be kept, nor copied often: beyond a 32nd of their device."""
    import torch

    room = _HOST_BYTES
    if tensors and tensors[0].is_cuda:
        room = torch.cuda.get_device_properties(tensors[0].device).total_memory
    return sum(int(tensor.nbytes) for tensor in tensors) > room // _LARGE_SHARE


def give_back(backend: str) -> None:
    """Return what torch keeps of freed memory to the device, where it is enough to matter to other processes."""
    if backend != "cuda":
        return
    import torch

    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _SPARE_BYTES:
        torch.cuda.empty_cache()
