import pytest

from artifacts.measurement import (
    BASELINES,
    DoubtKind,
    Measurement,
    Outcome,
    Precision,
    Timing,
    describe_speedups,
    doubt_mark,
    unsteady_times,
)


def timed(*samples_us: float) -> Timing:
    middle = sorted(samples_us)[len(samples_us) // 2]
    return Timing(median_us=middle, low_us=middle, high_us=middle, samples_us=samples_us)


def test_a_baseline_that_waited_in_most_calls_is_doubted_by_name() -> None:
    waited = timed(157.0, 130_000.0, 140_000.0, 180_000.0, 223.0)
    doubts = unsteady_times({"the candidate": timed(160.0, 170.0, 165.0), "eager_fp32": waited, "the incumbent": None})
    assert [doubt.kind for doubt in doubts] == [DoubtKind.UNSTEADY]
    assert doubts[0].text.startswith("eager_fp32 took 157 to 180,000 us")
    assert doubt_mark((*doubts, *doubts)) == "unsteady"


def test_a_few_late_calls_are_no_reason_to_doubt() -> None:
    late = {"the candidate": timed(160.0, 170.0, 9_000.0), "eager": timed(300.0, 310.0, 320.0, 50_000.0, 305.0)}
    assert unsteady_times(late) == ()


def test_a_timing_without_samples_is_taken_as_it_is() -> None:
    assert not Timing(median_us=2.0, low_us=1.0, high_us=3.0).unsteady


def against(precision: Precision, **times_us: float) -> Measurement:
    """A candidate of 100 us in a class, with baselines of the given times."""
    baselines = {name: timed(time) for name, time in times_us.items()}
    return Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cuda",
        precision=precision,
        timing=timed(100.0),
        baselines=baselines,
    )


def test_the_headline_is_over_the_fastest_baseline_that_keeps_to_the_class() -> None:
    times = {"eager": 150.0, "eager_fp32": 400.0, "eager_tf32": 120.0, "compile": 200.0, "cuda_graph": 300.0}
    strict = against(Precision.STRICT, **times)
    assert (strict.fastest_baseline, strict.speedup()) == ("compile", 2.0)
    assert strict.speedup("eager") == 1.5
    assert against(Precision.TF32, **times).fastest_baseline == "eager_tf32"
    assert against(Precision.BFLOAT16, **times).fastest_baseline == "eager"


def test_pytorch_as_installed_alone_is_no_headline_of_the_strict_class() -> None:
    found = against(Precision.STRICT, eager=150.0)
    assert (found.fastest_baseline, found.speedup(), found.reference) == (None, None, None)
    assert found.speedups == {"eager": 1.5}


@pytest.mark.parametrize("precision", Precision)
def test_the_reference_keeps_to_its_own_class(precision: Precision) -> None:
    assert precision.reference in precision.baselines
    assert set(precision.baselines) <= set(BASELINES)


def test_speedups_are_said_headline_first() -> None:
    found = against(Precision.STRICT, eager=150.0, eager_fp32=400.0, compile=120.0)
    assert describe_speedups(found.speedups) == "1.20x compile, the fastest baseline (eager 1.50x, eager_fp32 4.00x)"
    assert describe_speedups(against(Precision.STRICT, eager_fp32=400.0).speedups) == "4.00x eager_fp32"
    assert describe_speedups({}) == ""
