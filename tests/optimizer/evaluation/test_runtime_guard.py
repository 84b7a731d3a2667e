"""Torch may keep a part of the work, never all of it."""

from __future__ import annotations

import pytest
import torch

from optimizer.evaluation.sandbox.recording import recorded_operators
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.runtime_guard import does_the_work

ROWS = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
FIRST, SECOND = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(2))


def layers(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.relu(x @ FIRST) @ SECOND)


def test_one_whole_product_of_the_candidates_own_is_part_of_the_work() -> None:
    candidate = recorded_operators(lambda: torch.relu(ROWS @ FIRST))  # its kernel does the second layer
    finding = does_the_work(recorded_operators(lambda: layers(ROWS)), candidate)
    assert finding is not None
    assert not finding.fatal
    assert "products of matrices, relu" in finding.message


def test_a_few_rows_of_each_product_are_no_part_of_the_work() -> None:
    candidate = recorded_operators(lambda: layers(ROWS[:40]))
    with pytest.raises(Failure, match="do all of the reference's work"):
        does_the_work(recorded_operators(lambda: layers(ROWS)), candidate)


def test_one_product_in_the_place_of_two_is_all_of_the_work() -> None:
    both = torch.cat([FIRST, SECOND], 1)
    reference = recorded_operators(lambda: torch.relu(ROWS @ FIRST) + torch.relu(ROWS @ SECOND))
    candidate = recorded_operators(lambda: sum(torch.tensor_split(torch.relu(ROWS @ both), 2, 1)))
    with pytest.raises(Failure, match="do all of the reference's work"):
        does_the_work(reference, candidate)
