"""Knows when a candidate's own kernels run, takes their effect away, and shows what they forget or overwrite."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from optimizer.evaluation.guard.languages import LANGUAGES
from optimizer.evaluation.sandbox.values import join, map_tensors, span, split, tensors_in


class OwnKernels:
    """Counts calls into own code; wraps what is loaded from now on."""

    def __init__(self) -> None:
        self.calls = 0
        self.void = False
        self.echo = False
        self.own_results = 0
        self._echoes = 0
        self._wrap_extensions()
        self._wrap_triton()
        for language in LANGUAGES:
            language.watch(self)

    @property
    def replacing(self) -> bool:
        """Whether own kernels have another effect than their own now."""
        return self.void or self.echo

    @contextlib.contextmanager
    def replaced(self, *, echo: bool) -> Iterator[None]:
        """Inside the block own kernels give NaN or, with ``echo``, what they are given."""
        self.void, self.echo, self.own_results, self._echoes = not echo, echo, 0, 0
        try:
            with contextlib.nullcontext() if echo else void_operators():
                yield
            self.own_results += echo and not self._echoes
        finally:
            self.void = self.echo = False

    def _wrap_extensions(self) -> None:
        from torch.utils import cpp_extension

        original: Callable[..., Any] = cpp_extension._import_module_from_library

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            module = original(*args, **kwargs)
            if isinstance(module, types.ModuleType):
                self._wrap_module(module)
            return module

        cpp_extension._import_module_from_library = load

    def _wrap_module(self, module: types.ModuleType) -> None:
        for name, member in list(vars(module).items()):
            if callable(member) and not isinstance(member, type) and not name.startswith("__"):
                setattr(module, name, self.wrapped(member))

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, counted, and without its effect inside :meth:`replaced`."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.void:
                return self._voided(function, args, kwargs)
            if self.echo:
                return self._echoed(function, args, kwargs)
            return function(*args, **kwargs)

        return call

    def _voided(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function, then destroy what it returned and what it wrote into its arguments."""
        before = [(tensor, tensor.clone()) for tensor in tensors_in((args, kwargs))]
        result = function(*args, **kwargs)
        for tensor, copy in before:
            if not same_bits(tensor, copy):
                destroy(tensor)
        for tensor in tensors_in(result):
            destroy(tensor)
        return result

    def _echoed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result with the first argument of the same form in place of each tensor.

        ``own_results`` counts what has no such argument, or no result at all, and so keeps its effect.
        """
        given = [(tensor, tensor.clone()) for tensor in tensors_in((args, kwargs))]
        result = function(*args, **kwargs)
        results = tensors_in(result)
        self.own_results += not results or not all(same_bits(tensor, copy) for tensor, copy in given)

        def echo(tensor: Any) -> Any:
            alike = (copy for _, copy in given if copy.shape == tensor.shape and copy.dtype == tensor.dtype)
            found = next(alike, None)
            self.own_results += found is None
            self._echoes += found is not None
            return tensor if found is None else found

        return map_tensors(result, echo)

    def _wrap_triton(self) -> None:
        try:
            from triton.runtime.jit import JITFunction
        except ImportError:
            return
        original = JITFunction.run

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.own_results += self.echo
            return None if self.void else original(kernel, *args, **kwargs)

        JITFunction.run = run


def void_operators() -> Any:
    """A context in which operators that are not torch's own give nothing."""
    from optimizer.evaluation.sandbox.recording import PlainDispatchMode

    class Void(PlainDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.namespace != "aten":
                for tensor in tensors_in((args, result)):
                    destroy(tensor)
            return result

    return Void()


def same_bits(left: Any, right: Any) -> bool:
    """Equal element by element, NaN equal to NaN."""
    import torch

    return bool(torch.allclose(left, right, rtol=0, atol=0, equal_nan=True)) if left.numel() else True


def destroy(tensor: Any) -> None:
    """Overwrite a tensor with NaN, or the lowest value where there is no NaN."""
    import torch

    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


_M_PERTURB = -6
_PATTERN = 1
"""glibc fills new memory with the complement of this byte: floats near -1.7e38."""


@contextlib.contextmanager
def poisoned(backend: str) -> Iterator[None]:
    """Fill what torch allocates with NaN (integers: the largest value) inside the block.

    Sets the switch below ``torch.use_deterministic_algorithms``, whose Python side imports a compiler
    (seconds) that a sandbox never needs.
    """
    import torch

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and backend == "cpu":
        mallopt(_M_PERTURB, _PATTERN)
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch._C._set_deterministic_algorithms(False)
        if mallopt is not None and backend == "cpu":
            mallopt(_M_PERTURB, 0)


def frozen(values: list[Any]) -> list[Any]:
    """Copies of the values, the tensors among them in read-only memory; a write ends the process (CPU only)."""
    template, tensors = split(values)
    result: list[Any] = join(template, [_frozen(tensor) for tensor in tensors])
    return result


def _frozen(tensor: Any) -> Any:
    import torch

    if not tensor.numel() or tensor.layout != torch.strided:
        return tensor
    count = span(tensor.shape, tensor.stride())
    size = count * tensor.element_size()
    flat = torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype, count=count)
    flat.copy_(tensor.as_strided((count,), (1,)))
    protect = ctypes.CDLL(None).mprotect
    protect(ctypes.c_void_p(flat.data_ptr()), ctypes.c_size_t(size), ctypes.c_int(mmap.PROT_READ))
    return flat.as_strided(tensor.shape, tensor.stride())
