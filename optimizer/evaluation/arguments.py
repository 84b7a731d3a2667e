"""Fresh arguments for every timed call, so that an answer kept from an earlier call is found out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 512
"""Bytes; what torch's CUDA allocator gives, so that a copy is aligned like a fresh tensor."""


class FreshArguments:
    """Copies of the given arguments at a new, random address on each call.

    Tensors are copied into an arena with slack, at a random multiple of 512 bytes; anything else is
    passed on as it is. Copying happens when an instance is called, outside the timed region.

    Args:
        values: positional arguments of the callable to time.
        seed: of the offsets.
        slack_bytes: room in which the addresses vary.
    """

    def __init__(self, values: Sequence[object], seed: int = 0, slack_bytes: int = 8 << 20) -> None:
        self._values = tuple(values)
        self._random = random.Random(seed)
        self._slots = max(slack_bytes // _ALIGNMENT, 1)
        self._arenas = [_arena(value, self._slots * _ALIGNMENT) for value in self._values]

    def __call__(self, factor: float = 1.0) -> tuple[object, ...]:
        """Return the arguments, each tensor at an address that is unlikely to have been used before.

        Tensors of floating-point numbers are multiplied by ``factor``.
        """
        pairs = zip(self._values, self._arenas, strict=True)
        return tuple(value if arena is None else self._place(value, arena, factor) for value, arena in pairs)

    def _place(self, value: object, arena: torch.Tensor, factor: float) -> object:
        import torch

        assert isinstance(value, torch.Tensor)
        start = self._random.randrange(self._slots) * _ALIGNMENT
        span = _span(value) * value.element_size()
        flat = arena[start : start + span].view(value.dtype)
        source = value.detach().as_strided((_span(value),), (1,))
        if factor == 1.0 or not value.dtype.is_floating_point:
            flat.copy_(source)
        else:
            torch.mul(source, factor, out=flat)
        return flat.as_strided(value.shape, value.stride()).requires_grad_(value.requires_grad)


def scaled(values: Sequence[object], factor: float) -> list[object]:
    """What :class:`FreshArguments` gives for ``factor``, at new addresses too."""
    import torch

    return [
        value * factor if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value
        for value in values
    ]


def bind(function: Callable[..., object], arguments: Callable[[], tuple[object, ...]]) -> Callable[[], object]:
    """Draw arguments now and return the call that uses them."""
    values = arguments()
    return lambda: function(*values)


def _span(value: torch.Tensor) -> int:
    """Elements from the first to the last one that the strides reach."""
    if value.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


def _arena(value: object, slack: int) -> torch.Tensor | None:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    size = _span(value) * value.element_size()
    return torch.empty(size + slack, dtype=torch.uint8, device=value.device)
