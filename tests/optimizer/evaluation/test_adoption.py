"""Parameters go from the reference to a candidate by name, by order, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from optimizer.evaluation.sandbox.candidate import adopt


def state(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters and buffers with values that no constructor gives."""
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.copy_(torch.rand_like(value, dtype=torch.float64) + 2)
    return dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers(remove_duplicate=False))


def adopted(reference: nn.Module, candidate: nn.Module) -> list[str]:
    with torch.no_grad():
        return adopt(candidate, *state(reference))


def named(**layers: Callable[[], nn.Module]) -> nn.Module:
    return nn.ModuleDict({name: make() for name, make in layers.items()})


def square() -> nn.Module:
    return nn.Linear(3, 3)


def test_other_names_take_values_by_order() -> None:
    reference, candidate = (
        named(first=square, norm=lambda: nn.BatchNorm1d(3)),
        named(a=square, b=lambda: nn.BatchNorm1d(3)),
    )
    assert adopted(reference, candidate) == []
    assert torch.equal(candidate["a"].weight, reference["first"].weight)  # type: ignore[index]
    assert torch.equal(candidate["b"].running_var, reference["norm"].running_var)  # type: ignore[index]


def test_layers_of_which_some_keep_their_names_take_values_by_order() -> None:
    reference = named(attention=square, mlp=lambda: named(c_fc=square, c_proj=square))
    candidate = named(attention=square, c_fc=square, c_proj=square)
    assert adopted(reference, candidate) == []
    assert torch.equal(candidate["c_fc"].weight, reference["mlp"]["c_fc"].weight)  # type: ignore[index]
    assert torch.equal(candidate["attention"].weight, reference["attention"].weight)  # type: ignore[index]


def test_names_that_contradict_the_order_leave_what_the_constructor_drew() -> None:
    reference, candidate = named(first=square, second=square), named(second=square, third=square)
    drawn = {name: value.clone() for name, value in candidate.state_dict().items()}
    left = adopted(reference, candidate)
    assert {"first.weight", "second.weight"} <= set(left)
    assert all(torch.equal(value, drawn[name]) for name, value in candidate.state_dict().items())


def test_norms_take_their_values_beside_a_layer_in_another_form() -> None:
    reference = named(layer=lambda: nn.Linear(3, 5), norm=lambda: nn.LayerNorm(5))
    candidate = named(layer=lambda: nn.Linear(5, 3), norm=lambda: nn.LayerNorm(5))
    assert adopted(reference, candidate) == ["layer.weight", "layer.bias"]
    assert torch.equal(candidate["norm"].weight, reference["norm"].weight)  # type: ignore[index]


def test_tied_layers_take_values_by_order() -> None:
    def tied(one: str, other: str) -> nn.Module:
        layer = nn.Linear(3, 3)
        return nn.ModuleDict({one: layer, other: layer})

    reference, candidate = tied("embed", "head"), tied("a", "b")
    assert adopted(reference, candidate) == []
    assert torch.equal(candidate["b"].weight, reference["head"].weight)  # type: ignore[index]
