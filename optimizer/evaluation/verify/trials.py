"""What is tried: hidden seeds, transformed inputs, perturbed parameters, awkward shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.sandbox.values import is_constant, join, map_numbers, map_tensors, span, split

OFFSET = 1000.0
"""Added to inputs: shows variances computed as E[x²] - E[x]² and exponentials without
(or with the wrong) max subtraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One comparison with the reference.

    Attributes:
        name: for messages.
        seed: of inputs and parameters.
        transform: a key of :data:`TRANSFORMS`.
        perturb: change the parameters, so that a weight of one or a bias of zero is none.
        drawn: leave those parameters as they are that the constructor draws from the seed, for a candidate that holds
            them in another form; constant ones are perturbed all the same.
        awkward: use the task's awkward shape.
        numbers: change numbers among the inputs, which are arguments like any other.
        required: False when the reference may be undefined or ill-conditioned there; then it is left out.
    """

    name: str
    seed: int
    transform: str = "as given"
    perturb: bool = False
    drawn: bool = False
    awkward: bool = False
    numbers: bool = False
    required: bool = False


def derive_seed(secret: int, label: str) -> int:
    """A seed for ``label`` that nobody can guess without ``secret``."""
    digest = hashlib.sha256(f"{secret}:{label}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def plan(secret: int, seeds: int, awkward: bool) -> list[Trial]:
    """All trials of one evaluation: plain seeds first, since they say most about what is wrong."""
    trials = [
        Trial(name=f"seed {index + 1}", seed=derive_seed(secret, f"plain {index}"), required=True)
        for index in range(seeds)
    ]
    trials.append(Trial(name="perturbed parameters", seed=derive_seed(secret, "perturbed"), perturb=True))
    for name in TRANSFORMS:
        if name != "as given":
            trials.append(Trial(name=f"inputs {name}", seed=derive_seed(secret, name), transform=name, perturb=True))
    if awkward:
        trials.append(Trial(name="awkward shape", seed=derive_seed(secret, "awkward"), awkward=True, required=True))
    return trials


def _normal(tensor: Any) -> Any:
    """The same spread about zero: shows shortcuts for positive inputs and rounding that a large mean hides."""
    import torch

    spread = tensor.double().std() if tensor.numel() > 1 else tensor.double().abs().mean()
    return torch.randn_like(tensor) * spread.to(tensor.dtype)


_FEW = 1 / 256
_HIGH = 1000.0


def _peaked(tensor: Any) -> Any:
    """A few elements far above the others: shows a maximum that was looked for in a part only."""
    import torch

    few = torch.rand(tensor.shape, device=tensor.device) < _FEW
    changed = tensor.clone()
    changed[few] *= _HIGH
    return changed


_NUMBER_FACTOR = 0.75
"""Probabilities stay below one, and what is positive stays so."""


def with_other_numbers(secret: int) -> Trial:
    """One more trial for a task that has numbers among its inputs."""
    return Trial(name="other numbers", seed=derive_seed(secret, "numbers"), numbers=True)


def other_numbers(inputs: list[Any]) -> list[Any]:
    """The inputs with every ``float`` changed."""
    result: list[Any] = map_numbers(inputs, lambda number: number * _NUMBER_FACTOR)
    return result


_ZERO_SHARE = 0.02
"""Of elements: more zeros than that are no accident."""
_SPARSE = 1 / 64
TRANSFORMS: Mapping[str, Callable[[Any], Any]] = {
    "as given": lambda tensor: tensor,
    "×3": lambda tensor: tensor * 3.0,
    "×30": lambda tensor: tensor * 30.0,
    "×0.01": lambda tensor: tensor * 0.01,
    "×-1": lambda tensor: tensor * -1.0,
    "+1000": lambda tensor: tensor + OFFSET,
    "-1000": lambda tensor: tensor - OFFSET,
    "normal": _normal,
    "peaked": _peaked,
}
"""Applied to floating-point input tensors only."""


def transformed(inputs: list[Any], name: str) -> list[Any]:
    """Apply a transform to every floating-point tensor of the inputs, layouts kept."""
    if name == "as given":
        return inputs
    function = TRANSFORMS[name]
    result: list[Any] = map_tensors(
        inputs, lambda tensor: _transformed(tensor, function) if tensor.dtype.is_floating_point else tensor
    )
    return result


def _transformed(tensor: Any, function: Callable[[Any], Any]) -> Any:
    if tensor.numel() <= _PART or _is_symmetric(tensor):
        return kept_form(tensor, function(tensor))
    zeros = _keeps_zeros(tensor)
    return in_parts(tensor, lambda part: _kept_values(part, function(part), zeros=zeros))


_PART = 1 << 26
"""Elements of a tensor that are changed at a time, so that temporaries are small beside tensors that fill a device."""


def in_parts(tensor: Any, function: Callable[[Any], Any]) -> Any:
    """A new tensor of the same layout: what an elementwise function gives for parts of a tensor's memory."""
    import torch

    count = tensor.numel()
    if count <= _PART or span(tensor.shape, tensor.stride()) != count:
        return function(tensor)
    result = torch.empty_like(tensor)
    source, target = (each.as_strided((count,), (1,)) for each in (tensor, result))
    for part, place in zip(source.split(_PART), target.split(_PART), strict=True):
        place.copy_(function(part))
    return result


def kept_form(given: Any, changed: Any) -> Any:
    """``changed`` with the structure that ``given`` has: zeros where many are, symmetry, no infinite value moved.

    A kernel may count on what a task's inputs always are, such as triangular, and still be right.
    """
    changed = _kept_values(given, changed, zeros=_keeps_zeros(given))
    if _is_symmetric(given):
        changed = changed.triu() + changed.triu(1).mT
    return changed


def _keeps_zeros(given: Any) -> bool:
    return bool(given.numel() - given.count_nonzero() > _ZERO_SHARE * given.numel())


def _kept_values(given: Any, changed: Any, *, zeros: bool) -> Any:
    import torch

    special = ~torch.isfinite(given)
    if zeros:
        special |= given == 0
    return torch.where(special, given, changed) if bool(special.any()) else changed


def _is_symmetric(tensor: Any) -> bool:
    import torch

    square = tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1
    return square and bool(torch.equal(tensor, tensor.mT))


def twins(first: list[Any], second: list[Any], seed: int) -> list[list[Any]]:
    """Inputs that are like the first ones in many places and like the second ones in the others.

    Whoever tells inputs apart by a sample of them takes each for the first. One keeps both ends, one nearly all
    elements. Tensors of integers stay as they are.
    """
    import torch

    def mixed(choose: Callable[[Any], Any]) -> list[Any]:
        template, tensors = split(first)
        others = split(second)[1]
        values: list[Any] = join(template, [_mixed(a, b, choose) for a, b in zip(tensors, others, strict=True)])
        return values

    def sparse(flat: Any) -> Any:
        generator = torch.Generator(flat.device).manual_seed(seed)
        chosen = torch.rand(flat.shape, generator=generator, device=flat.device) < _SPARSE
        chosen[len(flat) // 2] = True
        return chosen

    def middle(flat: Any) -> Any:
        place = torch.arange(len(flat), device=flat.device)
        return (place >= len(flat) // 4) & (place < max(3 * len(flat) // 4, 1))

    return [mixed(middle), mixed(sparse)]


def _mixed(first: Any, second: Any, choose: Callable[[Any], Any]) -> Any:
    import torch

    if not first.dtype.is_floating_point or not first.numel() or first.shape != second.shape:
        return first
    chosen = choose(first.reshape(-1)).view(first.shape)
    return kept_form(first, torch.where(chosen, second, first))


def perturb_(model: Any, seed: int, only: Collection[str] | None = None) -> None:
    """Change floating-point parameters and constant buffers in place (all, or those named), keeping variances positive.

    A buffer of several numbers, such as a mask, is what the task computes with: a kernel may know it without reading.
    """
    import torch

    generators: dict[Any, Any] = {}
    with torch.no_grad():
        buffers = [(name, value) for name, value in model.named_buffers() if is_constant(value)]
        for name, value in (*model.named_parameters(), *buffers):
            if value.dtype.is_floating_point:
                device = value.device
                generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
                spread = _spread(value)
                for part in _parts(value):
                    changed = _perturbed(part, spread, generator)
                    if only is None or name in only:
                        part.copy_(changed.abs() + 0.05 if "var" in name else changed)


def _parts(value: Any) -> Iterable[Any]:
    """Views of a parameter that its memory is changed by."""
    return value.view(-1).split(_PART) if value.numel() > _PART and value.is_contiguous() else (value,)


def _perturbed(value: Any, spread: float, generator: Any) -> Any:
    import torch

    stretch, shift = torch.randn((2, *value.shape), generator=generator, dtype=torch.float64, device=value.device)
    return value.double() * (1 + 0.2 * stretch.clamp(-3, 3)) + 0.1 * shift * spread


def _spread(value: Any) -> float:
    """Scale of the additive part: the tensor's own, or one where it is constant zero."""
    import torch

    scale = float(value.detach().abs().mean(dtype=torch.float64))
    return scale if scale > 0 else 1.0
