"""The fp64 answer: whole where it fits, in slices where those are proven, and nothing that keeps quiet about itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from optimizer.evaluation.verify import oracle
from optimizer.evaluation.verify.memory_budget import sizes_of
from optimizer.evaluation.verify.oracle import Exact, Oracle, with_own_state

PLENTY, LITTLE, LEAST = 1 << 40, (1 << 30) + (300 << 10), 1 << 20
"""Room: for everything; for the answer beside some working memory; for not even the answer."""


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), -1)


class Batch(torch.nn.Module):
    """Every row knows all others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(x)
        return out


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def exact(model: torch.nn.Module, inputs: list[Any], room: int) -> Exact:
    torch.manual_seed(3)
    with torch.no_grad():
        native = [with_own_state(model)(*inputs)]
        found = Oracle("cpu", lambda: room).exact(model, inputs, native, 0)
    assert found is not None
    return found


def rows(count: int = 600) -> list[Any]:
    torch.manual_seed(1)
    return [torch.randn(count, 32)]


def test_what_fits_is_computed_whole() -> None:
    torch.manual_seed(0)
    found = exact(Rows(), rows(), PLENTY)
    assert (found.tensors[0].dtype, found.losses, found.note) == (torch.float64, None, "")


def test_slices_of_the_batch_give_the_same_as_the_whole() -> None:
    torch.manual_seed(0)
    model = Rows()
    found = exact(model, rows(), LITTLE)
    assert "slices" in found.note
    assert torch.allclose(found.tensors[0], exact(model, rows(), PLENTY).tensors[0], rtol=1e-12, atol=0)


def test_a_product_is_divided_along_the_side_that_the_output_has() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(300, 300), torch.randn(300, 300)]
    oracle_ = Oracle("cpu", lambda: PLENTY)
    with torch.no_grad():
        assert oracle_.batched(Product(), inputs, [inputs[0] @ inputs[1]]) == (0,)


def test_what_knows_the_whole_batch_is_not_divided() -> None:
    inputs = rows()
    with torch.no_grad():
        native = [with_own_state(Batch())(*inputs)]
        assert Oracle("cpu").batched(Batch(), inputs, native) is None
    assert exact(Batch(), inputs, LITTLE).note == oracle._NOT_MEASURED


def test_half_types_hide_what_a_batch_shares_and_are_not_divided() -> None:
    inputs = [each.half() for each in rows()]
    with torch.no_grad():
        native = [torch.relu(inputs[0])]
        assert Oracle("cpu").batched(torch.nn.ReLU(), inputs, native) is None


def test_where_the_answer_itself_does_not_fit_the_native_one_stands_in_with_its_loss() -> None:
    torch.manual_seed(0)
    model = Rows()
    found, whole = exact(model, rows(), LEAST), exact(model, rows(), PLENTY)
    assert found.tensors[0].dtype == torch.float32
    assert found.losses is not None
    assert found.losses[0] is not None
    error = (found.tensors[0].double() - whole.tensors[0]).abs()
    assert found.losses[0].rms == pytest.approx(float(error.square().mean().sqrt()), rel=1.0)
    assert 0 < found.losses[0].largest <= float(error.max())


def test_running_a_copy_leaves_the_statistics_of_the_model_alone() -> None:
    model = Batch()
    with torch.no_grad():
        with_own_state(model)(*rows())
    assert torch.equal(model.norm.running_mean, torch.zeros(32))  # type: ignore[arg-type]


def test_sizes_are_counted_without_memory() -> None:
    sizes = sizes_of(Rows, lambda: [torch.randn(1 << 20, 32)])
    assert (sizes.inputs, sizes.outputs) == (1 << 27, 1 << 27)
    assert sizes.parameters == 4 * (32 * 32 + 32)
    assert 1 << 27 <= sizes.intermediates <= 1 << 28


def test_more_is_asked_of_a_device_for_larger_tasks() -> None:
    card = 80 << 30
    needs = [
        sizes_of(Rows, lambda rows=rows: [torch.randn(rows, 32)]).evaluation_bytes(card)  # type: ignore[misc]
        for rows in (1 << 10, 1 << 20, 1 << 25)
    ]
    assert needs == sorted(needs)
    assert needs[0] < 2 << 30
    assert needs[-1] > 30 << 30


class Hungry(Rows):
    """Finds no room in fp64 for many rows at once, whatever was estimated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is torch.float64 and len(x) > 400:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def test_an_estimate_that_was_too_small_leads_to_slices() -> None:
    torch.manual_seed(0)
    found = exact(Hungry(), rows(), PLENTY)
    assert "slices" in found.note
    torch.manual_seed(0)
    assert torch.allclose(found.tensors[0], exact(Rows(), rows(), PLENTY).tensors[0], rtol=1e-12, atol=0)
