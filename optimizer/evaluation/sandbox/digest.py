"""Whether tensors are bit for bit what they were, told without a second copy of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from optimizer.evaluation.sandbox.shared_buffers import dense_of

_WORD = 8
_CHUNK = 1 << 24
"""Words at a time: temporaries stay small beside tensors that fill a device."""
_SPREAD, _FIRST, _SECOND = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB
"""Odd constants below 2^62, with bits spread as in the finaliser of a 64-bit generator."""


def digests(tensors: Sequence[Any], key: int) -> list[list[Any]]:
    """Shape, strides and a keyed sum over the bits of each tensor.

    Whoever changes a tensor before the key is drawn keeps its sum with probability 2^-64 or so: NaN equals itself,
    zero and minus zero differ.
    """
    dense = (dense_of(tensor.detach()) for tensor in tensors)
    return [[list(tensor.shape), list(tensor.stride()), _keyed_sum(tensor, key)] for tensor in dense]


def _keyed_sum(tensor: Any, key: int) -> int:
    import torch

    total = 0
    for number, words in enumerate(_words(tensor)):
        places = torch.arange(len(words), device=words.device, dtype=torch.int64)
        mixed = (words ^ (places + number * _CHUNK).mul_(_SPREAD).add_(key)).mul_(_FIRST)
        mixed = (mixed ^ (mixed >> 29)).mul_(_SECOND)
        mixed ^= mixed >> 32
        total = (total + int(mixed.sum())) % (1 << 64)
    return total


def _words(tensor: Any) -> Iterator[Any]:
    """The memory of a dense tensor as 64-bit numbers, in parts; the last ones filled up with zeros."""
    import torch

    if not tensor.numel():
        return
    data = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    whole = len(data) // _WORD * _WORD
    aligned = data[:whole] if data.storage_offset() % _WORD == 0 else data[:whole].clone()
    yield from aligned.view(torch.int64).split(_CHUNK)
    if whole < len(data):
        rest = torch.zeros(_WORD, dtype=torch.uint8, device=data.device)
        rest[: len(data) - whole] = data[whole:]
        yield rest.view(torch.int64)
