"""What is tried: hidden seeds, transformed inputs, perturbed parameters, awkward shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.process.values import join, map_numbers, map_tensors, split

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
        drawn: leave those parameters as they are that the constructor draws from the seed, for a candidate that packs
            them when it is constructed; constant ones are perturbed all the same.
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


def _scaled(factor: float) -> Callable[[Any], Any]:
    return lambda tensor: tensor * factor


def _shifted(offset: float) -> Callable[[Any], Any]:
    return lambda tensor: tensor + offset


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
    "×3": _scaled(3.0),
    "×30": _scaled(30.0),
    "×0.01": _scaled(0.01),
    "×-1": _scaled(-1.0),
    "+1000": _shifted(OFFSET),
    "-1000": _shifted(-OFFSET),
    "normal": _normal,
    "peaked": _peaked,
}
"""Applied to floating-point input tensors only."""


def transformed(inputs: list[Any], name: str) -> list[Any]:
    """Apply a transform to every floating-point tensor of the inputs, layouts kept."""
    function = TRANSFORMS[name]
    result: list[Any] = map_tensors(
        inputs, lambda tensor: kept_form(tensor, function(tensor)) if tensor.dtype.is_floating_point else tensor
    )
    return result


def kept_form(given: Any, changed: Any) -> Any:
    """``changed`` with the structure that ``given`` has: zeros where many are, symmetry, no infinite value moved.

    A kernel may count on what a task's inputs always are, such as triangular, and still be right.
    """
    import torch

    special = ~torch.isfinite(given)
    zeros = given == 0
    if int(zeros.sum()) > _ZERO_SHARE * given.numel():
        special |= zeros
    if bool(special.any()):
        changed = torch.where(special, given, changed)
    if _is_symmetric(given):
        changed = changed.triu() + changed.triu(1).mT
    return changed


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
    """Change floating-point parameters and buffers in place (all, or those named), keeping variances positive."""
    import torch

    generators: dict[Any, Any] = {}
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.dtype.is_floating_point:
                device = value.device
                generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
                shape = (2, *value.shape)
                stretch, shift = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
                if only is not None and name not in only:
                    continue
                changed = value.double() * (1 + 0.2 * stretch.clamp(-3, 3)) + 0.1 * shift * _spread(value)
                value.copy_(changed.abs() + 0.05 if "var" in name else changed)


def _spread(value: Any) -> float:
    """Scale of the additive part: the tensor's own, or one where it is constant zero."""
    scale = float(value.detach().double().abs().mean())
    return scale if scale > 0 else 1.0
