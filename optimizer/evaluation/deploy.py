"""Verified kernels in place of submodules, checked on the spot, with the original wherever they were not checked."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from artifacts.errors import BadInputError

Signature = tuple[tuple[object, ...], ...]
Factory = Callable[[nn.Module], nn.Module]
"""From a submodule to the fast module that takes its place, with the same parameters."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest error relative to an element plus the root mean square of its tensor, by dtype."""

ALIGNMENT = 16
"""Bytes of the widest loads of kernels, which fail on inputs that begin elsewhere, e.g. ``x[1:]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What became of one submodule.

    Attributes:
        name: of the submodule, empty for the model itself.
        problem: why the original stays; empty when the kernel took its place.
        signatures: input shapes, dtypes and devices for which the kernel is used.
        error: largest scaled error that the check saw.
    """

    name: str
    problem: str = ""
    signatures: frozenset[Signature] = frozenset()
    error: float = 0.0


def swap(model: nn.Module, kernels: Mapping[str, Factory], inputs: Sequence[Sequence[Any]]) -> tuple[Swap, ...]:
    """Put kernels in place of submodules of ``model`` and say what became of each.

    A submodule keeps its name, parameters and state dict; only its ``forward`` is replaced, and uses the
    kernel for inputs like those it was checked on, in the mode (training or not) it was checked in, without gradients
    and without autocast. :func:`restore` undoes it.

    Args:
        kernels: submodule name → factory; the empty name is the model itself.
        inputs: arguments for ``model``, one sequence a call, from which the submodules' own inputs are recorded.

    Raises:
        BadInputError: no submodule of that name.
    """
    modules = {name: _submodule(model, name) for name in kernels}
    calls = _recorded(model, modules, inputs)
    return tuple(_swapped(name, modules[name], kernels[name], calls[name]) for name in kernels)


def restore(model: nn.Module) -> None:
    """Give every swapped submodule its own ``forward`` back."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), _Switch):
            del module.__dict__["forward"]


def winner(path: Path) -> ModuleType:
    """Import a file that a run wrote for its best candidate; it defines ``load``.

    Raises:
        BadInputError: there is no such file.
    """
    spec = importlib.util.spec_from_file_location(f"htam_winner_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadInputError(f"{path} is no candidate file", "name a file in the run's best folder")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def factory(path: Path, init_inputs: Sequence[Any] = ()) -> Factory:
    """Factory for the candidate in ``path``; built when the first submodule asks for it."""
    return functools.partial(_loaded, path, tuple(init_inputs))


def signature(arguments: Sequence[Any]) -> Signature:
    """Shapes, dtypes, devices, layout and alignment of tensors; values of everything else."""
    return tuple(
        (tuple(item.shape), item.dtype, str(item.device), item.is_contiguous(), item.data_ptr() % ALIGNMENT == 0)
        if isinstance(item, torch.Tensor)
        else ("value", repr(item))
        for item in arguments
    )


class _Switch:
    """The ``forward`` of a swapped submodule."""

    def __init__(self, module: nn.Module, kernel: nn.Module, verified: frozenset[Signature]) -> None:
        self.original = module.forward
        self.kernel = kernel
        self.verified = verified
        self.training = module.training
        self.module = module

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named or signature(arguments) not in self.verified or not self._as_checked(arguments):
            return self.original(*arguments, **named)
        return self.kernel(*arguments)

    def _as_checked(self, arguments: Sequence[Any]) -> bool:
        devices = {item.device.type for item in arguments if isinstance(item, torch.Tensor)}
        cast = any(torch.is_autocast_enabled(device) for device in devices)
        return self.module.training == self.training and not torch.is_grad_enabled() and not cast


def _loaded(path: Path, init_inputs: tuple[Any, ...], reference: nn.Module) -> nn.Module:
    module: nn.Module = winner(path).load(*init_inputs, reference=reference)
    return module


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        known = ", ".join(repr(other or ".") for other, _ in list(model.named_modules())[:12])
        raise BadInputError(f"the model has no submodule {name!r}", f"it has {known} (. is the model itself)") from None


def _recorded(
    model: nn.Module, modules: Mapping[str, nn.Module], inputs: Sequence[Sequence[Any]]
) -> dict[str, list[tuple[Any, ...]]]:
    """Positional inputs of each submodule while the model is called."""
    calls: dict[str, list[tuple[Any, ...]]] = {name: [] for name in modules}

    def recorder(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _, arguments: calls[name].append(tuple(_copied(item) for item in arguments))

    hooks = [module.register_forward_pre_hook(recorder(name)) for name, module in modules.items()]
    try:
        with torch.no_grad():
            for arguments in inputs:
                model(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _swapped(name: str, module: nn.Module, make: Factory, calls: list[tuple[Any, ...]]) -> Swap:
    if not calls:
        return Swap(name=name, problem="it was not called with the given inputs")
    try:
        kernel = make(module)
        _tie(kernel, module)
        found = [_checked(module, kernel, arguments) for arguments in calls]
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError, OSError) as problem:
        return Swap(name=name, problem=f"the kernel cannot be used: {problem}")
    wrong = next((reason for _, reason in found if reason), "")
    if wrong:
        return Swap(name=name, problem=wrong)
    verified = frozenset(signature(arguments) for arguments in calls)
    module.__dict__["forward"] = _Switch(module, kernel, verified)
    return Swap(name=name, signatures=verified, error=max(error for error, _ in found))


def _tie(kernel: nn.Module, module: nn.Module) -> None:
    """Let the kernel use the very parameters and buffers of the module, so that later changes reach it."""
    for name, parameter in module.named_parameters():
        owner, _, leaf = name.rpartition(".")
        kernel.get_submodule(owner)._parameters[leaf] = parameter
    for name, buffer in module.named_buffers():
        owner, _, leaf = name.rpartition(".")
        kernel.get_submodule(owner)._buffers[leaf] = buffer


def _checked(module: nn.Module, kernel: nn.Module, arguments: tuple[Any, ...]) -> tuple[float, str]:
    """Largest scaled error on one call, and what is wrong (empty for nothing)."""
    given = tuple(_copied(item) for item in arguments)
    with torch.no_grad():
        expected, got = module(*map(_copied, arguments)), kernel(*given)
    if any(not _equal(before, after) for before, after in zip(arguments, given, strict=True)):
        return 0.0, "the kernel changes its inputs"
    wanted, found = _tensors(expected), _tensors(got)
    if len(wanted) != len(found):
        return 0.0, f"the kernel gives {len(found)} tensors instead of {len(wanted)}"
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return 0.0, f"the kernel gives {_kind(other)} instead of {_kind(one)}"
        error, allowed = _error(one, other), TOLERANCE.get(one.dtype, 0.0)
        if not error <= allowed:
            return error, f"the kernel differs from the original by {error:.2g}, {allowed:g} is allowed"
        worst = max(worst, error)
    return worst, ""


def _error(expected: torch.Tensor, got: torch.Tensor) -> float:
    if not expected.is_floating_point():
        return 0.0 if torch.equal(expected, got) else float("inf")
    if expected.numel() == 0:
        return 0.0
    exact, found = expected.double(), got.double()
    scale = exact.abs() + exact.square().mean().sqrt() + torch.finfo(expected.dtype).tiny
    return float(((exact - found).abs() / scale).max())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _copied(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, torch.Tensor) else item


def _equal(one: Any, other: Any) -> bool:
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else one is other
