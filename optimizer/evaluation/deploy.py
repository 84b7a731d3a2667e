"""Verified kernels in place of submodules, checked on the spot, with the original wherever they were not checked."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from artifacts.errors import BadInputError
from optimizer.evaluation.deploy_runtime import Outputs, Signature, install, outputs, share, signature

Factory = Callable[[nn.Module], nn.Module]
"""From a submodule to the fast module that takes its place, with the same parameters."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest error relative to an element plus the root mean square of its tensor, by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What became of one submodule.

    Attributes:
        name: of the submodule, empty for the model itself.
        problem: why the original stays; empty when the kernel took its place.
        verified: kinds of input for which the kernel is used, with what it gives for each.
        error: largest scaled error that the check saw.
    """

    name: str
    problem: str = ""
    verified: Mapping[Signature, Outputs] = field(default_factory=dict)
    error: float = 0.0


def swap(model: nn.Module, kernels: Mapping[str, Factory], inputs: Sequence[Sequence[Any]]) -> tuple[Swap, ...]:
    """Put kernels in place of submodules of ``model`` and say what became of each.

    Where they are used, and how that is undone, is said in :mod:`optimizer.evaluation.deploy_runtime`.

    Args:
        kernels: submodule name → factory; the empty name is the model itself.
        inputs: arguments for ``model``, one sequence a call, from which the submodules' own inputs are recorded.

    Raises:
        BadInputError: no submodule of that name.
    """
    modules = {name: _submodule(model, name) for name in kernels}
    calls = _recorded(model, modules, inputs)
    return tuple(_swapped(name, modules[name], kernels[name], calls[name]) for name in kernels)


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
        share(module, kernel)
        found = [_checked(module, kernel, arguments) for arguments in calls]
    except (RuntimeError, TypeError, ValueError, AttributeError, ImportError, OSError) as problem:
        return Swap(name=name, problem=f"the kernel cannot be used: {problem}")
    wrong = next((reason for _, reason, _ in found if reason), "")
    if wrong:
        return Swap(name=name, problem=wrong)
    verified = {signature(arguments): given for arguments, (_, _, given) in zip(calls, found, strict=True) if given}
    install(module, kernel, verified, training=module.training)
    return Swap(name=name, verified=verified, error=max(error for error, _, _ in found))


def _checked(module: nn.Module, kernel: nn.Module, arguments: tuple[Any, ...]) -> tuple[float, str, Outputs | None]:
    """Largest scaled error on one call, what is wrong (empty for nothing), and what the original gave."""
    given = tuple(_copied(item) for item in arguments)
    with torch.no_grad():
        expected, got = module(*map(_copied, arguments)), kernel(*given)
    if any(not _equal(before, after) for before, after in zip(arguments, given, strict=True)):
        return 0.0, "the kernel changes its inputs", None
    given_by = outputs(expected)
    if given_by is None:
        return 0.0, "the original gives something else than tensors", None
    wanted, found = _tensors(expected), _tensors(got)
    if len(wanted) != len(found):
        return 0.0, f"the kernel gives {len(found)} tensors instead of {len(wanted)}", None
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return 0.0, f"the kernel gives {_kind(other)} instead of {_kind(one)}", None
        error, allowed = _error(one, other), TOLERANCE.get(one.dtype, 0.0)
        if not error <= allowed:
            return error, f"the kernel differs from the original by {error:.2g}, {allowed:g} is allowed", None
        worst = max(worst, error)
    return worst, "", given_by


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
