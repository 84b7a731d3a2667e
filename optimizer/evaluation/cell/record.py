"""Which torch operators a call goes through, from Python and from inside C++ alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator call: ``aten`` or a custom namespace, name, and the larger of elements read and written."""

    namespace: str
    name: str
    work: int


def recorded_operators(function: Callable[[], object]) -> list[Operator]:
    """Run ``function`` and list the operators that torch dispatched, inside custom operators too."""
    from optimizer.evaluation.dispatch import PlainDispatchMode

    seen: list[Operator] = []

    class Recorder(PlainDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inside = _inside(func, (args, kwargs))
            if inside is None:
                result = func(*args, **(kwargs or {}))
            else:
                with self:
                    result = inside(*args, **(kwargs or {}))
            if func.namespace != "aten" or inside is None:
                namespace, _, name = str(func.name()).partition("::")
                work = max(_largest((args, kwargs)), _largest(result))
                seen.append(Operator(namespace, name.split(".")[0], work))
            return result

    with Recorder():
        function()
    return seen


def _inside(func: Any, values: Any) -> Callable[..., Any] | None:
    """How to call an operator so that what it calls is recorded too: one that is not torch's own, or made of others.

    None for plain ones, and for those that have no kernel where their arguments are.
    """
    import torch

    from optimizer.evaluation.cell.kernels import tensors_in

    if func.namespace == "aten":
        made_of_others = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        return func.decompose if made_of_others else None
    place = "CUDA" if any(tensor.is_cuda for tensor in tensors_in(values)) else "CPU"
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), place):
        return None
    return functools.partial(func.redispatch, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, place)))


def _largest(value: Any) -> int:
    from optimizer.evaluation.cell.kernels import tensors_in

    return max((tensor.numel() for tensor in tensors_in(value)), default=0)
