from artifacts.measurement import Measurement, Timing
from artifacts.outcome import Outcome


def timed(*samples_us: float) -> Timing:
    middle = sorted(samples_us)[len(samples_us) // 2]
    return Timing(median_us=middle, low_us=middle, high_us=middle, samples_us=samples_us)


def measured(own: Timing, eager: Timing) -> Measurement:
    return Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=own, baselines={"eager": eager})


def test_a_baseline_that_waited_in_most_calls_is_doubted_by_name() -> None:
    waited = timed(157.0, 130_000.0, 140_000.0, 180_000.0, 223.0)
    assert "eager took 157 to 180,000 us" in measured(timed(160.0, 170.0, 165.0), waited).doubt


def test_a_few_late_calls_are_no_reason_to_doubt() -> None:
    assert not measured(timed(160.0, 170.0, 9_000.0), timed(300.0, 310.0, 320.0, 50_000.0, 305.0)).doubt


def test_a_timing_without_samples_is_taken_as_it_is() -> None:
    assert not Timing(median_us=2.0, low_us=1.0, high_us=3.0).unsteady
