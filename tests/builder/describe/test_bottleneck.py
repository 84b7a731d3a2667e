from __future__ import annotations

import pytest

from artifacts.device import device_spec
from artifacts.measurement import Bottleneck, Outcome
from builder.describe.evidence import bottleneck, error_class, fraction_of_bound, size_regime


@pytest.mark.parametrize(
    ("dram", "compute", "duration_us", "expected"),
    [
        (85.0, 30.0, 100.0, Bottleneck.MEMORY),
        (30.0, 85.0, 100.0, Bottleneck.COMPUTE),
        (10.0, 20.0, 100.0, Bottleneck.LATENCY),
        (50.0, 48.0, 100.0, Bottleneck.LATENCY),
        (50.0, 20.0, 100.0, Bottleneck.MEMORY),
        (85.0, 30.0, 2.0, Bottleneck.LAUNCH),
    ],
)
def test_the_bottleneck_is_the_busy_unit(dram: float, compute: float, duration_us: float, expected: Bottleneck) -> None:
    profile = {"DRAMThroughput": dram, "ComputeSMThroughput": compute, "Duration": duration_us * 1000}
    assert bottleneck(profile) is expected


def test_raw_metric_names_of_the_profiler_are_known_too() -> None:
    profile = {
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 90.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 10.0,
    }
    assert bottleneck(profile) is Bottleneck.MEMORY


def test_one_metric_alone_says_nothing() -> None:
    assert bottleneck({"DRAMThroughput": 90.0}) is Bottleneck.UNKNOWN
    assert fraction_of_bound({"DRAMThroughput": 90.0}) is None


def test_a_logged_fraction_is_taken_as_it_is() -> None:
    assert fraction_of_bound({"fraction_of_bound": 0.4, "DRAMThroughput": 90.0, "ComputeSMThroughput": 1.0}) == 0.4


def test_the_size_regime_comes_from_the_bytes_moved() -> None:
    a800 = device_spec("A800")
    assert size_regime({"DRAMThroughput": 50.0, "Duration": 2_000_000.0}, a800) == "large"
    assert size_regime({"DRAMThroughput": 50.0, "Duration": 500.0}, a800) == "tiny"
    assert size_regime({"DRAMThroughput": 50.0, "Duration": 500.0}, device_spec("a thing")) == "unknown"


@pytest.mark.parametrize(
    ("outcome", "error", "expected"),
    [
        (Outcome.COMPILE_ERROR, "fatal error: torch/foo.h: No such file or directory", "missing_header"),
        (Outcome.COMPILE_ERROR, "k.cu(12): error: identifier x is undefined", "undefined_name"),
        (Outcome.COMPILE_ERROR, "undefined symbol: _Z3foo", "link_error"),
        (Outcome.RUNTIME_ERROR, "CUDA error: an illegal memory access was encountered", "illegal_access"),
        (Outcome.RUNTIME_ERROR, "CUDA out of memory", "out_of_memory"),
        (Outcome.WRONG_RESULT, "output mismatch, max difference 0.3", "numerical_mismatch"),
        (Outcome.WRONG_RESULT, "[1/2] nvcc ... INCORRECT_NUMERICAL max_rel_err=3", "numerical_mismatch"),
        (Outcome.TIMEOUT, "", "deadlock_or_timeout"),
        (Outcome.INFRA_ERROR, "CUDA out of memory", "infrastructure"),
        (Outcome.COMPILE_ERROR, "", "other_compile_error"),
        (Outcome.CORRECT, "", ""),
    ],
)
def test_a_failure_has_the_class_of_its_words(outcome: Outcome, error: str, expected: str) -> None:
    assert error_class(outcome, error) == expected
