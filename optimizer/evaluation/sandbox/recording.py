"""What a computation does, seen through torch's dispatcher: operators, flops, storages read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from optimizer.evaluation.sandbox.values import tensors_in


class PlainDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that never runs under ``torch.compile``.

    Saying so keeps torch from wrapping the handler, which would import the whole compiler (seconds) at
    the first operator of every fresh process.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class CountedFlops(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the formulas of torch's own flop counter.

    ``torch.utils.flop_counter.FlopCounterMode`` does the same per module, and imports the compiler for
    it (seconds in every fresh process).
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and add its formula, if it has one."""
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


_SPARSE_READERS = ("embedding", "index_select", "gather", "index", "select", "slice", "as_strided", "narrow")
"""Operators that read a part of their first argument: it does not count as read whole."""


class ReadSet(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages that are arguments of operators other than views and partial reads."""

    def __init__(self) -> None:
        super().__init__()
        self._whole: set[int] = set()

    def covers(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage was read as a whole by some operator."""
        return tensor.untyped_storage().data_ptr() in self._whole

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the arguments, then run the operator."""
        name = func.overloadpacket.__name__
        if not func.is_view and name not in _SPARSE_READERS:
            self._note(args)
            self._note(tuple((kwargs or {}).values()))
        return func(*args, **(kwargs or {}))

    def _note(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                size = value.numel() * value.element_size()
                if size == value.untyped_storage().nbytes() or value.is_contiguous():
                    self._whole.add(value.untyped_storage().data_ptr())
            elif isinstance(value, (list, tuple)):
                self._note(value)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator call: ``aten`` or a custom namespace, name, and the larger of elements read and written."""

    namespace: str
    name: str
    work: int


def recorded_operators(function: Callable[[], object]) -> list[Operator]:
    """Run ``function`` and list the operators that torch dispatched, inside custom operators too."""

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
    if func.namespace == "aten":
        made_of_others = func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        return func.decompose if made_of_others else None
    place = "CUDA" if any(tensor.is_cuda for tensor in tensors_in(values)) else "CPU"
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), place):
        return None
    return functools.partial(func.redispatch, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, place)))


def _largest(value: Any) -> int:
    return max((tensor.numel() for tensor in tensors_in(value)), default=0)
