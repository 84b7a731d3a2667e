"""The profiler's table, written by us after the shape of Nsight Compute's raw page."""

from __future__ import annotations

import contextlib
import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.evaluation.verify.counters import METRICS, NoCountersError, parse_table, plain_name

CHATTER = "==PROF== Connected to process 71 (/usr/bin/python3)\n==PROF== Disconnected from process 71\n"


def table(*kernels: dict[str, str]) -> str:
    """What the profiler would write for launches given as ``our metric name → text``."""
    head = ["ID", "Process ID", "Kernel Name", "Device", *METRICS.values()]
    units = dict.fromkeys(head, "") | {METRICS["duration_ns"]: "ns"}
    out = io.StringIO()
    writer = csv.DictWriter(out, head, quoting=csv.QUOTE_ALL, restval="")
    writer.writeheader()
    writer.writerow(units)
    for index, kernel in enumerate(kernels):
        named = {METRICS.get(name, name): value for name, value in kernel.items()}
        writer.writerow({"ID": str(index), "Kernel Name": "mine(float *)", METRICS["duration_ns"]: "1,000"} | named)
    return CHATTER + out.getvalue()


def test_values_are_read_across_thousands_separators_and_the_row_of_units() -> None:
    (kernel,) = parse_table(table({"duration_ns": "1,234.5", "registers": "32", "dram_percent": "81.25"}))
    assert kernel.values == {"duration_ns": 1234.5, "registers": 32.0, "dram_percent": 81.25}


def test_a_metric_that_the_device_does_not_count_is_missing_and_not_zero() -> None:
    (kernel,) = parse_table(table({"tensor_percent": "n/a", "l2_hit_percent": "nan"}))
    assert kernel.values.keys() == {"duration_ns"}


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("void row_softmax<256>(const float *, float *)", True),
        ("attention::forward(float *)", True),
        ("my_gemm_kernel(float *)", True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(T1::Params)", False),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n", False),
    ],
)
def test_kernels_of_torch_and_its_libraries_are_told_from_own_ones(name: str, own: bool) -> None:
    (kernel,) = parse_table(table({"Kernel Name": name}))
    assert kernel.own is own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "said nothing"),
        (CHATTER + "==ERROR== The application returned an error code (1).\n", "returned an error code"),
        (CHATTER + "==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        (table(), "Disconnected"),
        (table({"duration_ns": "n/a"}), "without a duration"),
    ],
)
def test_text_without_a_usable_table_is_refused_with_what_it_says(text: str, words: str) -> None:
    with pytest.raises(NoCountersError, match=words):
        parse_table(text)


def test_a_name_keeps_neither_templates_nor_parameters() -> None:
    assert plain_name("void ns::<unnamed>::rows<(int)4, float>(const T1 *)") == "ns::anonymous::rows"


@given(st.text())
def test_no_name_carries_more_than_one_harmless_word_into_a_sentence(name: str) -> None:
    plain = plain_name(name)
    assert 0 < len(plain) <= 60
    assert all(letter.isalnum() or letter in "_:" for letter in plain)


@given(st.text())
def test_whatever_a_profiler_writes_is_a_table_or_a_refusal(text: str) -> None:
    with contextlib.suppress(NoCountersError):
        assert parse_table(text)
