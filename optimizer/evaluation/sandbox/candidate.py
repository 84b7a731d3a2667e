"""A candidate as a module: imported from its source, and given the reference's parameters."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from optimizer.evaluation.sandbox.values import is_constant


def import_candidate(source: str, folder: Path) -> ModuleType:
    """Write the source into ``folder`` and run it; exceptions of the candidate pass through."""
    return import_source(source, folder / "candidate.py", "candidate")


def import_source(source: str, path: Path, name: str) -> ModuleType:
    """Write the source to ``path`` and run it as the module ``name``; whatever it raises passes through."""
    path.write_text(source, encoding="utf-8", errors="surrogatepass")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def constructed(make: Callable[..., Any], arguments: Sequence[Any], seed: int, device: str) -> tuple[Any, str]:
    """A model for a seed, its parameters drawn on ``device``, and where they were drawn: on the host if it insists.

    Drawing gigabytes of weights takes a host seconds. Reference and candidate draw at the same place, so that equal
    constructors give equal parameters.
    """
    import torch

    torch.manual_seed(seed)
    if device != "cpu":
        try:
            with torch.device(device):
                return make(*arguments), device
        except (RuntimeError, TypeError, ValueError):
            torch.manual_seed(seed)
    return make(*arguments), "cpu"


def adopt(model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> list[str]:
    """Copy the reference's parameters and buffers into ``model``; return the parameters that found no place.

    By name where every parameter has its namesake of the same shape; by order where the shapes agree one by one and
    no name says otherwise. In any other case the model keeps what its constructor drew from the seed, and only
    namesakes that are constant there, such as the weights of a norm, get new values.
    """
    own = dict(model.named_parameters(remove_duplicate=False))
    held = dict(model.named_buffers(remove_duplicate=False))
    every, values = {**own, **held}, {**parameters, **buffers}
    if all(_fits(every, name, value) for name, value in parameters.items()):
        _copy(every, values)
        return []
    if _same_order(own, parameters):
        _copy_in_order(own, parameters)
        (_copy_in_order if _same_order(held, buffers) else _copy)(held, buffers)
        return []
    constant = {name: value for name, value in every.items() if is_constant(value)}
    _copy(constant, values)
    return [name for name, value in parameters.items() if not _fits(constant, name, value)]


def _copy(own: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if _fits(own, name, value):
            own[name].copy_(value)


def _copy_in_order(own: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for target, value in zip(own.values(), values.values(), strict=True):
        target.copy_(value)


def _same_order(own: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether shapes agree one by one and names that both have stand at the same places."""
    if [target.shape for target in own.values()] != [value.shape for value in values.values()]:
        return False
    return all(mine == theirs or mine not in values for mine, theirs in zip(own, values, strict=True))


def _fits(own: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in own and own[name].shape == value.shape
