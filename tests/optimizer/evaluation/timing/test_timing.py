from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from optimizer.evaluation.sandbox.clock import Call, CpuClock, FreshArguments, bind, last_level_cache_bytes
from optimizer.evaluation.verify.timing import (
    TimingSettings,
    compare,
    median_interval,
    seen_again,
    signed_rank_p,
    time_callable,
)


class ScriptedClock:
    """Takes the time from the call itself: what the call returns is its run time in microseconds."""

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        return [float(prepare()()) for prepare in prepares]  # type: ignore[arg-type]


def _noisy(seed: int, mean_us: float, noise: float = 0.02) -> Callable[[], Call]:
    source = random.Random(seed)
    return lambda: lambda: mean_us * source.lognormvariate(0, noise)


FAST = TimingSettings(warmup_s=0.0, budget_s=5.0, min_samples=20, max_samples=80)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=200))
def test_the_interval_holds_its_median(samples: list[float]) -> None:
    low, middle, high = median_interval(samples)
    assert min(samples) <= low <= middle <= high <= max(samples)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    source = random.Random(1)
    hits = 0
    for _ in range(400):
        low, _, high = median_interval([source.gauss(10, 1) for _ in range(50)])
        hits += low <= 10 <= high
    assert hits >= 360


def test_a_kernel_against_itself_is_promoted_in_at_most_five_of_a_hundred() -> None:
    promoted = sum(
        compare(_noisy(seed, 50), _noisy(seed + 1000, 50), ScriptedClock(), FAST).faster for seed in range(100)
    )
    assert promoted <= 5


def test_a_gain_that_only_one_pair_of_processes_shows_is_none() -> None:
    lucky = compare(_noisy(1, 97), _noisy(2, 100), ScriptedClock(), FAST)
    plain = compare(_noisy(3, 100), _noisy(4, 100), ScriptedClock(), FAST)
    assert lucky.faster
    assert not seen_again(lucky, lambda: plain).faster
    assert seen_again(lucky, lambda: lucky).faster


def test_no_gain_needs_no_second_pair_of_processes() -> None:
    none = compare(_noisy(3, 100), _noisy(4, 100), ScriptedClock(), FAST)
    assert seen_again(none, lambda: pytest.fail("was measured again")) is none


def test_a_candidate_five_percent_faster_is_promoted() -> None:
    result = compare(_noisy(1, 95), _noisy(2, 100), ScriptedClock(), FAST)
    assert result.faster
    assert result.ratio == pytest.approx(100 / 95, rel=0.02)


def _disturbed(seed: int, mean_us: float) -> Callable[[], Call]:
    """A busy machine: every eighth call waits for a time slice of 4 ms."""
    call, source = _noisy(seed, mean_us), random.Random(seed)
    return lambda: lambda: call()() + 4000 * (source.random() < 1 / 8)


def test_time_slices_of_others_neither_hide_a_gain_nor_feign_one() -> None:
    seeds = range(100)
    found = sum(
        compare(_disturbed(seed, 400), _disturbed(seed + 1000, 500), ScriptedClock(), FAST).faster for seed in seeds
    )
    feigned = sum(
        compare(_disturbed(seed, 500), _disturbed(seed + 1000, 500), ScriptedClock(), FAST).faster for seed in seeds
    )
    assert found >= 95
    assert feigned <= 5


def test_a_slower_candidate_is_never_promoted() -> None:
    assert not compare(_noisy(1, 110), _noisy(2, 100), ScriptedClock(), FAST).faster


def test_a_drift_of_the_clock_speed_does_not_look_like_a_gain() -> None:
    ticks = iter(range(10**6))

    def drifting() -> Call:
        return lambda: 100 + next(ticks)

    assert not compare(drifting, drifting, ScriptedClock(), FAST).faster


def test_measuring_stops_as_soon_as_the_interval_is_narrow() -> None:
    quiet = time_callable(_noisy(3, 10, noise=1e-5), ScriptedClock(), FAST)
    loud = time_callable(_noisy(3, 10, noise=0.5), ScriptedClock(), FAST)
    assert len(quiet.samples_us) == FAST.min_samples
    assert len(loud.samples_us) == FAST.max_samples


def test_no_difference_at_all_is_no_evidence() -> None:
    assert signed_rank_p([0.0] * 30) == 1.0


@pytest.mark.parametrize(("sign", "small"), [(1, True), (-1, False)])
def test_the_signed_rank_test_is_one_sided(sign: int, small: bool) -> None:
    p_value = signed_rank_p([sign * (1 + index / 100) for index in range(20)])
    assert (p_value < 0.001) is small


def test_every_call_sees_its_arguments_at_a_new_address_with_the_same_content_and_strides() -> None:
    value = torch.arange(24.0).reshape(4, 6).t()
    fresh = FreshArguments([value, 3, "x"])
    drawn = [fresh() for _ in range(30)]
    addresses = set()
    for tensor, number, text in drawn[-1:]:
        assert (number, text) == (3, "x")
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, value)
        assert tensor.stride() == value.stride()
    for tensor, _, _ in drawn:
        assert isinstance(tensor, torch.Tensor)
        addresses.add(tensor.data_ptr())
    assert len(addresses) >= 28


def test_an_expanded_or_empty_tensor_is_copied_too() -> None:
    wide, empty = torch.ones(1, 3).expand(4, 3), torch.empty(0, 5)
    drawn = FreshArguments([wide, empty])()
    assert torch.equal(drawn[0], wide)  # type: ignore[arg-type]
    assert drawn[1].shape == (0, 5)  # type: ignore[attr-defined]


def test_the_cpu_clock_orders_little_and_much_work() -> None:
    small, large = torch.randn(8, 8), torch.randn(1200, 1200)
    clock = CpuClock(flush_bytes=1 << 20)
    settings = TimingSettings(min_samples=5, max_samples=5, warmup_s=0.0)
    little = time_callable(lambda: bind(torch.mm, lambda: (small, small)), clock, settings)
    much = time_callable(lambda: bind(torch.mm, lambda: (large, large)), clock, settings)
    assert little.median_us < much.median_us


NEW_PAGES = """
import resource
import torch
from optimizer.evaluation.sandbox.clock import CpuClock, give_freed_memory_back

def pages(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

clock = CpuClock(flush_bytes=4)
calls = [pages(lambda: torch.ones(4 << 20)) for _ in range(30)]
give_freed_memory_back()
print(*calls, pages(lambda: torch.ones(4 << 20)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_calls_soon_pay_no_more_for_the_pages_of_their_output_until_these_are_given_back() -> None:
    ran = subprocess.run([sys.executable, "-c", NEW_PAGES], capture_output=True, text=True, check=True)
    first, *later, again = map(int, ran.stdout.split())
    assert first > 100
    assert max(later[-10:]) < first / 10
    assert again > first / 2


def test_the_cache_size_is_read_from_the_system(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "size").write_text("48K\n")
    (tmp_path / "index3").mkdir()
    (tmp_path / "index3" / "size").write_text("33M\n")
    assert last_level_cache_bytes(str(tmp_path)) == 33 << 20
    assert last_level_cache_bytes(str(tmp_path / "none")) == 32 << 20
