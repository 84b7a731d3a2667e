"""The bounds accept honest rounding and refuse lowered precision, forgotten elements and trivial outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.evaluation.verify.tolerance import mismatch, powerless_controls, tolerance_for


def product(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, 64, 64, generator=generator)
    a, b = a.to(dtype), b.to(dtype)
    return a.double() @ b.double(), a @ b


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_the_native_reference_passes_its_own_bounds(seed: int) -> None:
    exact, native = product(seed)
    tolerance = tolerance_for(exact, native)
    assert tolerance is not None
    assert mismatch(native, exact, tolerance) == ""


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_zeros_and_the_mean_are_refused(seed: int) -> None:
    exact, native = product(seed)
    tolerance = tolerance_for(exact, native)
    assert tolerance is not None
    assert powerless_controls(exact, tolerance) == set()


@pytest.mark.parametrize("lowered", [torch.float16, torch.bfloat16])
def test_operands_of_lower_precision_are_refused(lowered: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 64, 64, generator=generator)
    exact = a.double() @ b.double()
    tolerance = tolerance_for(exact, a @ b)
    assert tolerance is not None
    assert "precision" in mismatch(a.to(lowered).float() @ b.to(lowered).float(), exact, tolerance) or (
        "differ" in mismatch(a.to(lowered).float() @ b.to(lowered).float(), exact, tolerance)
    )


def test_one_forgotten_element_is_found_and_named() -> None:
    exact, native = product(2)
    tolerance = tolerance_for(exact, native)
    assert tolerance is not None
    native[63, 63] = 0
    assert "flat index 4095" in mismatch(native, exact, tolerance)


def test_not_a_number_is_never_accepted() -> None:
    exact, native = product(3)
    tolerance = tolerance_for(exact, native)
    assert tolerance is not None
    native[0, 0] = float("nan")
    assert "1 of 4096" in mismatch(native, exact, tolerance)


def test_a_large_mean_does_not_hide_a_constant_output() -> None:
    exact = 1000 + torch.randn(1000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    tolerance = tolerance_for(exact, exact.float())
    assert tolerance is not None
    assert powerless_controls(exact, tolerance) == set()


def test_a_constant_task_has_no_power_and_says_so() -> None:
    exact = torch.zeros(10, dtype=torch.float64)
    tolerance = tolerance_for(exact, exact.float())
    assert tolerance is not None
    assert powerless_controls(exact, tolerance) == {"zeros", "mean"}


def test_an_ill_conditioned_reference_gives_no_bounds() -> None:
    exact = torch.randn(100, dtype=torch.float64)
    assert tolerance_for(exact, (exact + 0.1).float()) is None


def as_tf32(tensor: torch.Tensor, *, cut_off: bool = False) -> torch.Tensor:
    """Operands as tensor cores take them: 10 bits of mantissa, rounded by libraries, cut off by hardware."""
    bits = tensor.contiguous().view(torch.int32)
    nearest = 0 if cut_off else 0x0FFF + ((bits >> 13) & 1)
    return ((bits + nearest) & ~0x1FFF).view(torch.float32)


def products(layers: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    matrices = [torch.randn(96, 96, generator=generator) for _ in range(layers + 1)]
    return matrices, torch.linalg.multi_dot([matrix.double() for matrix in matrices])


def chained(matrices: list[torch.Tensor], convert: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Each product with operands converted, sums in float64 and results in float32."""
    result = matrices[0]
    for matrix in matrices[1:]:
        result = (convert(result).double() @ convert(matrix).double()).float()
    return result


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_tf32_class_takes_tf32_and_nothing_coarser(layers: int) -> None:
    matrices, exact = products(layers)
    native = chained(matrices, as_tf32)
    tolerance = tolerance_for(exact, native, tf32=True)
    assert tolerance is not None
    assert mismatch(native, exact, tolerance) == ""
    assert mismatch(chained(matrices, lambda each: as_tf32(each, cut_off=True)), exact, tolerance) == ""
    assert mismatch(chained(matrices, torch.Tensor.float), exact, tolerance) == ""
    assert "precision" in mismatch(chained(matrices, lambda each: each.bfloat16().float()), exact, tolerance)


def test_sums_that_hardly_vary_may_be_added_one_after_the_other() -> None:
    generator = torch.Generator().manual_seed(12)
    terms = 0.5 + 1e-4 * torch.randn(64, 1 << 15, generator=generator)
    exact = terms.double().sum(1)
    tolerance = tolerance_for(exact, terms.sum(1))
    one_by_one = torch.from_numpy(np.cumsum(terms.numpy(), axis=1, dtype=np.float32)[:, -1])
    assert tolerance is not None
    assert float((one_by_one.double() - exact).square().mean().sqrt()) > 0.1 * float(exact.std())
    assert mismatch(one_by_one, exact, tolerance) == ""
    assert mismatch(terms.half().float().sum(1), exact, tolerance)


def test_operands_may_be_cut_off_to_tf32_where_all_terms_have_one_sign() -> None:
    left, right = 1000 + torch.randn(2, 96, 96, generator=torch.Generator().manual_seed(13))
    exact = left.double() @ right.double()
    tolerance = tolerance_for(exact, chained([left, right], as_tf32), tf32=True)
    assert tolerance is not None
    assert mismatch(chained([left, right], lambda each: as_tf32(each, cut_off=True)), exact, tolerance) == ""


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_strict_class_refuses_tf32(layers: int) -> None:
    matrices, exact = products(layers)
    tolerance = tolerance_for(exact, chained(matrices, torch.Tensor.float))
    assert tolerance is not None
    assert mismatch(chained(matrices, torch.Tensor.float), exact, tolerance) == ""
    assert mismatch(chained(matrices, as_tf32), exact, tolerance)


def test_tf32_widens_the_bounds_of_float32_outputs_only() -> None:
    exact, native = product(5, torch.float16)
    assert tolerance_for(exact, native, tf32=True) == tolerance_for(exact, native)
