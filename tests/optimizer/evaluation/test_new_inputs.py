"""Inputs of timed calls and of trials: new each time, checked, and still what the task's inputs always are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from artifacts.measurement import Outcome
from optimizer.evaluation.guard.cpp_rules import check_cpp
from optimizer.evaluation.sandbox.channel import Channel, channel_pair
from optimizer.evaluation.sandbox.clock import FreshArguments, late_ones, scaled
from optimizer.evaluation.sandbox.own_kernels import frozen
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.verify.trials import TRANSFORMS, other_numbers, transformed, twins


def test_a_cell_and_its_judge_scale_inputs_to_the_same_bits() -> None:
    values = [torch.randn(7, 5).t(), torch.arange(4), "text"]
    for factor in (0.95, 0.9731, 1.0):
        ours, theirs = scaled(values, factor), FreshArguments(values)(factor)
        assert torch.equal(ours[0], theirs[0])  # type: ignore[arg-type]
        assert torch.equal(theirs[1], values[1])  # type: ignore[arg-type]
        assert ours[2] == theirs[2] == "text"


@pytest.mark.parametrize("name", list(TRANSFORMS))
def test_triangular_and_symmetric_inputs_stay_what_they_are(name: str) -> None:
    base = torch.randn(9, 9)
    upper, symmetric = transformed([torch.triu(base), base + base.T], name)
    assert torch.equal(upper, torch.triu(upper))
    assert torch.equal(symmetric, symmetric.T)


def test_a_mask_of_infinities_stays_in_place() -> None:
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    for name in TRANSFORMS:
        assert torch.equal(torch.isinf(transformed([mask], name)[0]), torch.isinf(mask))


def test_twins_share_samples_with_the_first_and_differ_from_it() -> None:
    first, second = [torch.randn(61, 515), torch.arange(3)], [torch.randn(61, 515), torch.arange(3) + 1]
    for one, count in twins(first, second, 1), twins(first, second, 2):
        for twin in (one, count):
            assert torch.equal(twin[0].flatten()[:8], first[0].flatten()[:8]) or twin is not one
            assert not torch.equal(twin[0], first[0])
            assert torch.equal(twin[1], first[1])


def test_calls_that_the_host_brought_late_are_known_by_what_it_can_do() -> None:
    assert late_ones([30.0, 200.0, 35.0], cover_us=130.0, least_us=30.0) == [1]
    assert late_ones([300.0, 320.0], cover_us=130.0, least_us=290.0) == []
    assert late_ones([], cover_us=130.0, least_us=1.0) == []


@pytest.fixture
def ends() -> Iterator[tuple[SandboxClient, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield SandboxClient(ours, 10.0), other
    ours.close()
    other.close()


@pytest.mark.parametrize("samples", [[1.0], [float("nan"), 1.0], [-1.0, 1.0], [0.0, 1.0], ["1", 1.0], None])
def test_times_that_are_none_are_refused(ends: tuple[SandboxClient, Channel], samples: object) -> None:
    ends[1].send({"samples_us": samples})
    with pytest.raises(Failure) as caught:
        ends[0].time([0, 1])
    assert caught.value.outcome is Outcome.REJECTED


@pytest.mark.parametrize(
    ("said", "outcome"), [("correct", "rejected"), ("nonsense", "rejected"), ("timeout", "timeout")]
)
def test_a_cell_names_no_good_verdict(ends: tuple[SandboxClient, Channel], said: str, outcome: str) -> None:
    ends[1].send({"error": said, "text": "t"})
    with pytest.raises(Failure) as caught:
        ends[0].time([0])
    assert caught.value.outcome.value == outcome


def test_every_timed_call_has_a_factor_of_its_own(ends: tuple[SandboxClient, Channel]) -> None:
    ends[1].send({"samples_us": [1.0] * 50})
    ends[0].time([0] * 50)
    factors = ends[1].receive(10)[0]["factors"]
    assert len(set(factors)) == 50
    assert all(0.9 < factor <= 1.0 for factor in factors)


def fatal(source: str) -> list[str]:
    return [finding.rule for finding in check_cpp(source) if finding.fatal]


def test_operators_in_parallel_regions_are_refused_wherever_they_hide() -> None:
    direct = "void f(torch::Tensor x) {\n#pragma omp parallel\n{ auto y = torch::softmax(x, -1); }\n}"
    hidden = "auto g(torch::Tensor x) { return x.softmax(-1); }\nvoid f(torch::Tensor x) {\n#pragma omp parallel for\nfor (int i = 0; i < 2; ++i) g(x);\n}"  # noqa: E501
    pool = "void f(torch::Tensor x) { at::parallel_for(0, 9, 1, [&](int64_t a, int64_t b) { at::exp(x); }); }"
    assert [fatal(source) for source in (direct, hidden, pool)] == [["cpp_thread"]] * 3


def test_operators_beside_parallel_regions_are_nobodys_business_there() -> None:
    source = (
        "void f(torch::Tensor x) {\nauto y = torch::mm(x, x);\n#pragma omp parallel for\n"
        "for (int i = 0; i < 9; ++i) { y.data_ptr<float>()[i] = std::exp(1.0f); }\n}"
    )
    assert fatal(source) == []


def test_pasted_names_are_put_together() -> None:
    macro = "#define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n"
    assert fatal(macro + "void f() { JOIN(cudaStream, Create)(0); }") == ["cpp_stream"]
    assert fatal(macro + "void JOIN(my, kernel)() {}") == []


def test_other_numbers_leave_whole_numbers_and_truth_values_alone() -> None:
    assert other_numbers([2.0, 3, True, (4.0, "a"), None]) == [1.5, 3, True, (3.0, "a"), None]


def test_peaks_are_few_and_keep_their_sign() -> None:
    torch.manual_seed(0)
    given = torch.rand(300, 100) + 0.5
    (peaked,) = transformed([given], "peaked")
    changed = peaked != given
    assert 0 < int(changed.sum()) < changed.numel() // 50
    assert torch.equal(peaked[changed], given[changed] * 1000)


def test_frozen_inputs_are_equal_copies_in_the_same_layout() -> None:
    given: list[Any] = [torch.arange(12.0).view(3, 4).t(), torch.empty(0, 2), torch.tensor([True, False])[1:], 2.5]
    copies = frozen(given)
    assert copies[3] == given[3]
    for before, after in zip(given[:3], copies[:3], strict=True):
        assert torch.equal(before, after)
        assert (before.dtype, before.stride()) == (after.dtype, after.stride())
    assert copies[0].data_ptr() != given[0].data_ptr()
