"""Verified kernels in place of submodules; needs torch and nothing else, because ``htam apply`` copies it beside them.

A kernel runs for inputs like those it was verified on, in that mode, without gradients and without autocast; for all
others the original does. Under ``torch.compile`` it is an operator of ``torch.library``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

Signature = tuple[tuple[object, ...], ...]
"""Of the arguments of a call, see :func:`signature`."""
Outputs = tuple[str, tuple[tuple[tuple[int, ...], torch.dtype], ...]]
"""``tensor``, ``tuple`` or ``list``, and shape and dtype of each tensor."""

ALIGNMENT = 16
"""Bytes of the widest loads of kernels, which fail on inputs that begin elsewhere, e.g. ``x[1:]``."""
GRADIENT = "this operator has no gradient: call the module, which uses the original where gradients are wanted"

_CALLS: list[tuple[nn.Module, Outputs]] = []
"""Every verified kind of call of every kernel: what the operator's number stands for."""


def signature(arguments: Sequence[Any]) -> Signature:
    """Shape, dtype, device and layout of tensors; values of everything else."""
    return tuple(
        (tuple(item.shape), item.dtype, str(item.device), item.is_contiguous())
        if isinstance(item, torch.Tensor)
        else ("value", repr(item))
        for item in arguments
    )


def outputs(value: Any) -> Outputs | None:
    """What a call gave, as far as it must be known before the next; None for anything but tensors and rows of them."""
    items = [value] if isinstance(value, torch.Tensor) else value
    if not isinstance(items, (tuple, list)) or not all(isinstance(item, torch.Tensor) for item in items):
        return None
    kind = "tensor" if isinstance(value, torch.Tensor) else "tuple" if isinstance(value, tuple) else "list"
    return kind, tuple((tuple(item.shape), item.dtype) for item in items)


def share(module: nn.Module, kernel: nn.Module) -> None:
    """Let ``kernel`` use the very parameters and buffers of ``module``, so that later changes reach it."""
    for name, parameter in module.named_parameters():
        owner, _, leaf = name.rpartition(".")
        kernel.get_submodule(owner)._parameters[leaf] = parameter
    for name, buffer in module.named_buffers():
        owner, _, leaf = name.rpartition(".")
        kernel.get_submodule(owner)._buffers[leaf] = buffer


def install(module: nn.Module, kernel: nn.Module, verified: Mapping[Signature, Outputs], *, training: bool) -> None:
    """Let ``kernel`` do the work of ``module`` for ``verified`` calls in the mode ``training``.

    The module keeps its name, parameters and state dict. :func:`restore` undoes it.
    """
    share(module, kernel)
    original = module.forward
    known, first = tuple(verified), len(_CALLS)
    kinds = tuple(verified[one][0] for one in known)
    _CALLS.extend((kernel, verified[one]) for one in known)

    def forward(*arguments: Any, **named: Any) -> Any:
        tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
        if named or torch.is_grad_enabled() or module.training != training or _autocast(tensors):
            return original(*arguments, **named)
        found = signature(arguments)
        if found not in known:
            return original(*arguments, **named)
        if not torch.compiler.is_compiling():
            aligned = all(item.data_ptr() % ALIGNMENT == 0 for item in tensors)
            return kernel(*arguments) if aligned else original(*arguments)
        if len(tensors) < len(arguments):
            return original(*arguments)
        number = known.index(found)
        result = _operator(tensors, [*module.parameters(), *module.buffers()], first + number)
        kind = kinds[number]
        return result[0] if kind == "tensor" else tuple(result) if kind == "tuple" else result

    forward.replaced = original  # type: ignore[attr-defined]
    module.__dict__["forward"] = forward


def restore(model: nn.Module) -> None:
    """Give every submodule that has a kernel its own ``forward`` back."""
    for module in model.modules():
        if hasattr(module.__dict__.get("forward"), "replaced"):
            del module.__dict__["forward"]


def accelerate(model: nn.Module, swaps: Sequence[tuple[str, Callable[..., nn.Module], Mapping[Any, Any], bool]]) -> Any:
    """Install kernels in a model that is on its device and in its mode, and return it.

    Args:
        swaps: name of a submodule (empty for the model), what makes its kernel, verified calls, verified mode.
    """
    for name, load, verified, training in swaps:
        module = model.get_submodule(name)
        install(module, load(reference=module), verified, training=training)
    return model


def _autocast(tensors: Sequence[torch.Tensor]) -> bool:
    return any(torch.is_autocast_enabled(item.device.type) for item in tensors)


def _run(tensors: list[torch.Tensor], state: list[torch.Tensor], call: int) -> list[torch.Tensor]:
    """``state`` is what the kernel shares with its module: a compiler must know that the result depends on it."""
    given = [item if item.data_ptr() % ALIGNMENT == 0 else item.clone() for item in tensors]
    value = _CALLS[call][0](*given)
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _shapes(tensors: list[torch.Tensor], state: list[torch.Tensor], call: int) -> list[torch.Tensor]:
    _, given = _CALLS[call][1]
    return [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in given]


def _no_gradient(*_: object) -> Any:
    raise RuntimeError(GRADIENT)


_operator = torch.library.custom_op(
    f"htam::{__name__.replace('.', '_')}",
    _run,
    mutates_args=(),
    schema="(Tensor[] tensors, Tensor[] state, int call) -> Tensor[]",
)
_operator.register_fake(_shapes)
_operator.register_autograd(_no_gradient)
