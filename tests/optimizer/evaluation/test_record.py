"""The record of operators hears what happens inside custom ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from optimizer.evaluation.sandbox.recording import recorded_operators


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("htam_test_record", "DEF") as found:
        yield found


def names(function: Callable[[], object]) -> list[str]:
    with torch.no_grad():
        return [f"{each.namespace}::{each.name}" for each in recorded_operators(function)]


@pytest.mark.parametrize("kind", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_work_inside_a_custom_operator_is_recorded(library: torch.library.Library, kind: str) -> None:
    library.define("soft(Tensor x) -> Tensor")
    library.impl("soft", lambda x: torch.softmax(x, -1), kind)
    assert "aten::_softmax" in names(lambda: torch.ops.htam_test_record.soft(torch.rand(3, 4)))


def test_a_custom_operator_inside_another_is_recorded_with_what_it_does(library: torch.library.Library) -> None:
    library.define("inner(Tensor x) -> Tensor")
    library.define("outer(Tensor x) -> Tensor")
    library.impl("inner", lambda x: torch.matmul(x, x), "CPU")
    library.impl("outer", lambda x: torch.ops.htam_test_record.inner(x) * 2, "CPU")
    x = torch.rand(4, 4)
    found = names(lambda: torch.ops.htam_test_record.outer(x))
    assert found == ["aten::mm", "htam_test_record::inner", "aten::mul", "htam_test_record::outer"]


def test_plain_operators_are_recorded_once() -> None:
    x = torch.rand(3, 4)
    assert names(lambda: torch.softmax(x, -1)) == ["aten::_softmax"]
