"""Pages of ``ncu --csv`` as KernelMem keeps them: several kernels, raw and detail pages in one file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.read.importers.kernelmem import read_ncu_csv

PAGES = """==METRICS_START:short==
"ID","Kernel Name","device__attribute_display_name","gpu__time_duration.sum","sm__throughput.pct"
"","","","usecond","%"
"0","short","NVIDIA H100","5.0","10.0"
==METRICS_END:short==
==METRICS_START:long==
"ID","Kernel Name","device__attribute_display_name","gpu__time_duration.sum","sm__throughput.pct"
"","","","usecond","%"
"0","long","NVIDIA H100","1,250.5","41.5"
==METRICS_END:long==
==SECTION_START:long==
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","long","GPU Speed Of Light","Memory Throughput","%","78.90"
"0","long","Memory Workload","Memory Throughput","byte/second","1,566"
"0","long","Rule","","",""
"""


@pytest.fixture
def page(tmp_path):
    return tmp_path / "kernel_ncu.csv"


def test_the_kernel_that_ran_longest_speaks_for_the_candidate(page):
    page.write_text(PAGES)
    device, metrics = read_ncu_csv(page)
    assert device == "NVIDIA H100"
    assert metrics["sm__throughput.pct"] == 41.5
    assert metrics["gpu__time_duration.sum"] == 1_250_500.0


def test_of_two_metrics_of_one_name_the_first_counts(page):
    page.write_text(PAGES)
    assert read_ncu_csv(page)[1]["Memory Throughput"] == 78.9


@given(st.text(max_size=300), st.integers(0, len(PAGES)))
def test_no_page_makes_it_raise(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("ncu") / "page.csv"
    path.write_text(PAGES[:at] + noise + PAGES[at:], encoding="utf-8")
    device, metrics = read_ncu_csv(path)
    assert isinstance(device, str)
    assert all(value == value for value in metrics.values())


def test_a_missing_page_is_empty(page):
    assert read_ncu_csv(page) == ("", {})
