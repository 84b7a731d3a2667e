from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optimizer.evaluation.build.headers import factories, named_operators, needs_all_headers, operator_header

INCLUDE = Path(torch.__file__).parent / "include"


def test_qualified_operators_are_found() -> None:
    assert named_operators("auto y = torch::relu(at::matmul(a, b));", INCLUDE) == ("matmul", "relu")


def test_unqualified_calls_count_only_under_a_using_directive() -> None:
    assert named_operators("float f() { return sin(x); }", INCLUDE) == ()
    assert named_operators("using namespace torch;\nTensor f() { return sin(x); }", INCLUDE) == ("sin",)


def test_factories_are_taken_from_the_installed_header_with_all_their_overloads() -> None:
    found = factories(INCLUDE)
    assert {"empty", "zeros", "ones", "full", "randn", "arange", "from_blob"} <= set(found)
    assert found["arange"].count("inline at::Tensor arange(") >= 3
    assert found["arange"].count("{") == found["arange"].count("}")


def test_the_header_declares_what_is_named_and_not_the_rest() -> None:
    header = operator_header("torch::arange(4).to(torch::kCUDA)", INCLUDE)
    assert "inline at::Tensor arange(" in header
    assert "inline at::Tensor randn(" not in header


@pytest.mark.parametrize(
    "text",
    ["torch::nn::functional::relu(x)", "at::native::relu", "TORCH_LIBRARY(m, x) {}", "#include <torch/script.h>"],
)
def test_sources_that_need_more_of_torch_go_the_stock_route(text: str) -> None:
    assert needs_all_headers(text)
