"""Nested values with tensors inside, split into a template and its tensors, and joined again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for the tensor with this index."""

    index: int


def split(value: Any) -> tuple[Any, list[Any]]:
    """Replace every tensor in lists, tuples and dicts by a :class:`Slot`; return template and tensors."""
    import torch

    tensors: list[Any] = []

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        return Slot(len(tensors) - 1)

    return _rebuilt(value, taken), tensors


def join(template: Any, tensors: list[Any]) -> Any:
    """Put tensors back into a template."""
    return _rebuilt(template, lambda leaf: tensors[leaf.index] if isinstance(leaf, Slot) else leaf)


def tensors_in(value: Any) -> list[Any]:
    """All tensors in nested lists, tuples and dicts."""
    return split(value)[1]


def nbytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors."""
    return sum(int(tensor.nbytes) for tensor in tensors)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one that the strides reach."""
    if math.prod(shape) == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply ``function`` to every tensor in a nested value."""
    template, tensors = split(value)
    return join(template, [function(tensor) for tensor in tensors])


def map_numbers(value: Any, function: Callable[[float], float]) -> Any:
    """Apply ``function`` to every ``float`` in a nested value; whole numbers and truth values stay."""
    return _rebuilt(value, lambda leaf: function(leaf) if type(leaf) is float else leaf)


def _rebuilt(item: Any, replace: Callable[[Any], Any]) -> Any:
    """A nested value with every leaf replaced.

    No function here may refer to itself from inside another: such a cycle keeps tensors until Python looks for cycles,
    and a device is full before.
    """
    if isinstance(item, (list, tuple)):
        parts = [_rebuilt(part, replace) for part in item]
        if hasattr(item, "_fields"):
            return type(item)(*parts)
        return parts if isinstance(item, list) else tuple(parts)
    if isinstance(item, dict):
        return {key: _rebuilt(part, replace) for key, part in item.items()}
    return replace(item)


def is_constant(tensor: Any) -> bool:
    """Whether a tensor holds one number in all its places."""
    return bool(tensor.numel()) and bool((tensor == tensor.flatten()[0]).all())
