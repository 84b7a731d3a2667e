from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.measurement import Bottleneck, Outcome, Timing
from optimizer.evaluation.verify import bound
from optimizer.evaluation.verify.bound import Bound, Ceilings, Work, improved_ceilings
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.plausibility import bound_of, counted_profile, possible

SLOW = Ceilings(device="d", bytes_per_s=1.0, cache_bytes=0, cache_bytes_per_s=1.0, flops_per_s={"float32": 1.0})


@pytest.fixture(scope="module")
def host() -> Ceilings:
    """What this machine reaches, which takes seconds to measure."""
    return bound.measure_ceilings("cpu")


@pytest.fixture(autouse=True)
def _measured_once(host: Ceilings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "measure_ceilings", lambda backend: host)


def taking(time_us: float) -> Timing:
    return Timing(median_us=time_us, low_us=time_us, high_us=time_us)


def test_a_time_in_which_no_device_moves_the_bytes_is_refused(tmp_path: Path) -> None:
    work = Work(read_bytes=10**12, written_bytes=0, flops=0)
    with pytest.raises(Failure) as failed:
        possible(work, bound_of(work, "cpu", tmp_path), taking(1.0), "cpu", tmp_path)
    assert failed.value.outcome is Outcome.REJECTED
    assert [finding.rule for finding in failed.value.findings] == ["below_bound"]


def test_ceilings_that_were_measured_too_low_are_measured_again_before_they_refuse(tmp_path: Path) -> None:
    for _ in range(3):
        improved_ceilings("cpu", tmp_path, lambda backend: SLOW)
    work = Work(read_bytes=1000, written_bytes=0, flops=0)
    known = bound_of(work, "cpu", tmp_path)
    assert known.is_impossible(1000.0)
    possible(work, known, taking(1000.0), "cpu", tmp_path)


def test_a_time_that_needs_less_arithmetic_than_the_reference_stands(tmp_path: Path) -> None:
    work = Work(read_bytes=1000, written_bytes=0, flops=10**15)
    possible(work, bound_of(work, "cpu", tmp_path), taking(1000.0), "cpu", tmp_path)


def test_the_profile_forgets_arithmetic_that_the_candidate_did_without() -> None:
    known = Bound(memory_us=100.0, compute_us=1000.0)
    slower, faster = counted_profile(known, taking(2000.0)), counted_profile(known, taking(400.0))
    assert (slower.bottleneck, slower.bound_us, slower.fraction_of_bound) == (Bottleneck.COMPUTE, 1000.0, 0.5)
    assert (faster.bottleneck, faster.bound_us, faster.fraction_of_bound) == (Bottleneck.MEMORY, 100.0, 0.25)
    assert "needs less arithmetic" in faster.findings[0]
    assert "needs less arithmetic" not in slower.findings[0]
