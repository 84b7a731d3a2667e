"""What counters are taken to mean."""

from __future__ import annotations

import pytest

from artifacts.measurement import Bottleneck, EvidenceLevel, Profile
from optimizer.evaluation.verify.counters import KernelCounters, summed, with_counters

COUNTED = Profile(
    bottleneck=Bottleneck.MEMORY,
    evidence=EvidenceLevel.COUNTED,
    bound_us=50.0,
    fraction_of_bound=0.5,
    findings=("memory bound 50.0 µs, compute bound 1.0 µs",),
)


def kernel(name: str = "rows", own: bool = True, **values: float) -> KernelCounters:
    return KernelCounters(name=name, own=own, values={"duration_ns": 100_000.0, **values})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dram_percent": 88.0, "sm_percent": 30.0}, Bottleneck.MEMORY),
        ({"dram_percent": 20.0, "memory_percent": 90.0, "sm_percent": 70.0}, Bottleneck.MEMORY),
        ({"dram_percent": 20.0, "sm_percent": 75.0}, Bottleneck.COMPUTE),
        ({"dram_percent": 20.0, "sm_percent": 40.0, "tensor_percent": 80.0}, Bottleneck.COMPUTE),
        ({"dram_percent": 20.0, "sm_percent": 25.0}, Bottleneck.LATENCY),
        ({"registers": 32.0}, Bottleneck.UNKNOWN),
    ],
)
def test_the_busiest_unit_is_the_bottleneck_and_idle_ones_mean_latency(
    values: dict[str, float], expected: Bottleneck
) -> None:
    assert with_counters(COUNTED, [kernel(**values)], time_us=110.0).bottleneck is expected


def test_kernels_that_fill_little_of_the_time_mean_launches() -> None:
    profile = with_counters(COUNTED, [kernel(dram_percent=90.0)], time_us=300.0)
    assert profile.bottleneck is Bottleneck.LAUNCH
    assert any("waits for launches" in finding for finding in profile.findings)


def test_bound_and_counted_findings_stay_and_the_evidence_rises() -> None:
    profile = with_counters(COUNTED, [kernel(dram_percent=88.0)], time_us=100.0)
    assert (profile.evidence, profile.bound_us, profile.fraction_of_bound) == (EvidenceLevel.COUNTERS, 50.0, 0.5)
    assert profile.findings[-1] == COUNTED.findings[0]


def test_sums_add_up_and_percentages_are_weighted_by_duration() -> None:
    long, short = kernel(dram_percent=80.0, read_bytes=3.0), kernel(dram_percent=20.0, read_bytes=4.0)
    short = KernelCounters(name="s", own=True, values={**short.values, "duration_ns": 50_000.0})
    assert summed([long, short]) == {"duration_ns": 150_000.0, "dram_percent": 60.0, "read_bytes": 7.0}


def test_counters_are_the_own_kernels_and_torchs_share_is_said() -> None:
    kernels = [kernel(dram_percent=80.0), kernel("fill", own=False, dram_percent=10.0)]
    profile = with_counters(COUNTED, kernels, time_us=220.0)
    assert profile.metrics["dram_percent"] == 80.0
    assert "kernels of torch and its libraries take 50 % of that" in profile.findings


def test_spills_low_occupancy_and_a_small_grid_are_said_and_their_absence_is_not() -> None:
    bad = with_counters(
        COUNTED, [kernel(local_load_sectors=64.0, occupancy_percent=12.0, registers=255.0, waves=0.25)], time_us=110.0
    )
    good = with_counters(
        COUNTED, [kernel(local_load_sectors=0.0, occupancy_percent=90.0, registers=32.0, waves=8.0)], time_us=110.0
    )
    for words in ("local memory in use", "only 12 % of the warps", "0.25 of one wave"):
        assert any(words in finding for finding in bad.findings)
        assert not any(words in finding for finding in good.findings)


def test_each_finding_is_one_line() -> None:
    profile = with_counters(COUNTED, [kernel(dram_percent=1.0, sm_percent=2.0, l2_hit_percent=99.0)], time_us=900.0)
    assert all("\n" not in finding for finding in profile.findings)
