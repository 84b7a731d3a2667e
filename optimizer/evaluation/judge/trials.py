"""What is tried: hidden seeds, transformed inputs, perturbed parameters, awkward shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
        awkward: use the task's awkward shape.
        required: False when the reference may be undefined or ill-conditioned there; then it is left out.
    """

    name: str
    seed: int
    transform: str = "as given"
    perturb: bool = False
    awkward: bool = False
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


TRANSFORMS: Mapping[str, Callable[[Any], Any]] = {
    "as given": lambda tensor: tensor,
    "×3": _scaled(3.0),
    "×0.01": _scaled(0.01),
    "×-1": _scaled(-1.0),
    "+1000": _shifted(OFFSET),
    "-1000": _shifted(-OFFSET),
    "normal": _normal,
}
"""Applied to floating-point input tensors only."""


def transformed(inputs: list[Any], name: str) -> list[Any]:
    """Apply a transform to every floating-point tensor of the inputs, layouts kept."""
    from optimizer.evaluation.process.values import map_tensors

    function = TRANSFORMS[name]
    result: list[Any] = map_tensors(
        inputs, lambda tensor: function(tensor) if tensor.dtype.is_floating_point else tensor
    )
    return result


def perturb_(model: Any, seed: int) -> None:
    """Change all floating-point parameters and buffers in place, keeping variances positive."""
    import torch

    generators: dict[Any, Any] = {}
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.dtype.is_floating_point:
                device = value.device
                generator = generators.setdefault(device, torch.Generator(device).manual_seed(seed))
                shape = (2, *value.shape)
                stretch, shift = torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
                changed = value.double() * (1 + 0.2 * stretch.clamp(-3, 3)) + 0.1 * shift * _spread(value)
                value.copy_(changed.abs() + 0.05 if "var" in name else changed)


def _spread(value: Any) -> float:
    """Scale of the additive part: the tensor's own, or one where it is constant zero."""
    scale = float(value.detach().double().abs().mean())
    return scale if scale > 0 else 1.0
