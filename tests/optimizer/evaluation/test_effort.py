"""How much time a candidate deserves, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from artifacts.measurement import Doubt, DoubtKind, Timing
from optimizer.evaluation.sandbox.clock import Call
from optimizer.evaluation.verify.effort import BreathingClock, Effort, limits
from optimizer.evaluation.verify.evaluation import doubts_of
from optimizer.evaluation.verify.timing import TimingSettings, timing_of


@pytest.mark.parametrize(
    ("call_us", "incumbent_us", "rough"),
    [(100.0, None, False), (299.0, None, False), (301.0, None, True), (900.0, 800.0, False), (900.0, 100.0, True)],
)
def test_only_who_is_far_behind_baseline_and_incumbent_is_measured_roughly(
    call_us: float, incumbent_us: float | None, rough: bool
) -> None:
    effort = Effort.deserved("cuda", call_us, 100.0, incumbent_us)
    assert effort.rough is rough
    assert bool(effort.why) is rough


def test_a_call_may_take_long_only_where_the_reference_does() -> None:
    first_s, later_s = limits("cuda", 0.001, compiles=False, most_s=60.0)
    assert later_s <= first_s < 10
    assert limits("cuda", 0.5, compiles=False, most_s=60.0)[1] == 25.0
    assert limits("cuda", 0.001, compiles=True, most_s=60.0)[0] == 60.0
    assert limits("cuda", 9.0, compiles=True, most_s=12.0)[1] == 12.0


def test_long_calls_get_few_samples_and_short_ones_as_many_as_asked_for() -> None:
    settings = TimingSettings(min_samples=20, max_samples=400)
    assert Effort.deserved("cuda", 100.0, 100.0, None).settings(settings) == settings
    assert Effort.deserved("cuda", 1e6, 1e6, None).settings(settings).min_samples == 5
    assert Effort.deserved("cuda", 1e6, 1e6, None).calls(40) == 1


class Scripted:
    """Says how many calls came at a time."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        self.batches.append(len(prepares))
        return [1.0] * len(prepares)


def test_a_measurement_says_itself_that_it_was_rough_and_who_waited() -> None:
    rough = Doubt(kind=DoubtKind.ROUGH, text="timed 3 times only: 9 times as slow as the reference")
    waited = Timing(median_us=90.0, low_us=80.0, high_us=95.0, samples_us=(1.0, 90.0, 95.0))
    fields = {"timing": waited, "baselines": {"eager_fp32": timing_of([10.0, 11.0])}, "doubts": (rough,)}
    found = doubts_of(fields)
    assert [doubt.kind for doubt in found] == [DoubtKind.ROUGH, DoubtKind.UNSTEADY]
    assert found[1].text.startswith("the candidate took 1 to 95 us")


def test_a_batch_of_long_calls_is_divided_and_others_breathe_between() -> None:
    clock, breaths = Scripted(), []
    calls: list[Callable[[], Call]] = [lambda: lambda: None] * 7
    assert BreathingClock(clock, lambda: breaths.append(1), 0.3).measure(calls) == [1.0] * 7
    assert (clock.batches, len(breaths)) == ([3, 3, 1], 2)
    assert BreathingClock(clock, lambda: breaths.append(1), 1e-6).measure(calls) == [1.0] * 7
    assert (clock.batches[3:], len(breaths)) == ([7], 2)
