"""Inputs that can be read and not written, so that a write shows even where it is undone."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

from optimizer.evaluation.process.values import join, split


def frozen(values: list[Any]) -> list[Any]:
    """Copies of the values, the tensors among them in read-only memory; a write ends the process (CPU only)."""
    template, tensors = split(values)
    result: list[Any] = join(template, [_frozen(tensor) for tensor in tensors])
    return result


def _frozen(tensor: Any) -> Any:
    import torch

    if not tensor.numel() or tensor.layout != torch.strided:
        return tensor
    count = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    size = count * tensor.element_size()
    flat = torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype, count=count)
    flat.copy_(tensor.as_strided((count,), (1,)))
    protect = ctypes.CDLL(None).mprotect
    protect(ctypes.c_void_p(flat.data_ptr()), ctypes.c_size_t(size), ctypes.c_int(mmap.PROT_READ))
    return flat.as_strided(tensor.shape, tensor.stride())
