"""Candidates of a task on one scale, whatever the host did between their measurements."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep
from artifacts.trajectory import State
from pipeline.report.paired import paired_times


def timing(us: float) -> Timing:
    return Timing(median_us=us, low_us=us, high_us=us)


def step(
    step_id: str,
    parent: str | None,
    us: float | None,
    *,
    eager: float = 100.0,
    pair: float | None = None,
    incumbent: str | None = None,
) -> LoggedStep:
    measured = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error="no")
    if us is not None:
        measured = Measurement(
            outcome=Outcome.CORRECT,
            stage="timing",
            device="cpu",
            timing=timing(us),
            baselines={"eager_fp32": timing(eager)},
            incumbent=None if pair is None else timing(pair),
            faster_than_incumbent=None if pair is None else us < pair,
        )
    if pair is not None and incumbent is None:
        incumbent = parent
    return LoggedStep(
        task_id="t",
        step_id=step_id,
        parent_id=parent,
        index=int(step_id.split(".")[0]),
        mode="optimize",
        candidate_sha256=step_id,
        parent_sha256=parent or "",
        direction="",
        strategies=(),
        plan="",
        state=State(family="softmax", arch="cpu", language=Language.CPP),
        measurement=measured,
        incumbent_id=incumbent,
    )


def test_a_child_measured_under_load_is_placed_by_its_ratio_to_its_parent() -> None:
    steps = [step("0.0", None, 50.0), step("1.0", "0.0", 80.0, eager=200.0, pair=100.0)]
    assert paired_times(steps) == pytest.approx({"0.0": 100.0, "1.0": 80.0})
    quiet = [step("0.0", None, 50.0), step("1.0", "0.0", 40.0, pair=50.0)]
    assert paired_times(quiet) == pytest.approx({"0.0": 50.0, "1.0": 40.0})


def test_a_repair_is_placed_by_the_incumbent_that_the_log_names() -> None:
    steps = [step("0.0", None, 50.0), step("1.0", "0.0", None), step("2.0", "1.0", 30.0, pair=60.0, incumbent="0.0")]
    times = paired_times(steps)
    assert times["2.0"] / times["0.0"] == pytest.approx(0.5)


def test_one_noisy_measurement_of_the_first_candidate_moves_nobody_else() -> None:
    chain = [step("1.0", "0.0", 40.0, pair=50.0), step("2.0", "1.0", 20.0, pair=40.0)]
    quiet = paired_times([step("0.0", None, 50.0), *chain])
    assert paired_times([step("0.0", None, 150.0), *chain]) == pytest.approx(quiet)
    assert quiet == pytest.approx({"0.0": 50.0, "1.0": 40.0, "2.0": 20.0})


def test_the_winner_lies_where_it_was_measured_after_the_search() -> None:
    steps = [step("0.0", None, 50.0), step("0.1", None, 70.0), step("1.0", "0.0", 40.0, pair=50.0)]
    again = step("9.0", None, 60.0, eager=200.0).measurement
    assert paired_times(steps, "1.0", again) == pytest.approx({"0.0": 75.0, "0.1": 140.0, "1.0": 60.0})


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.floats(0.1, 10.0))
def test_ratios_within_pairs_are_kept_whatever_the_host_did(ratios: list[float], load: float) -> None:
    steps = [step("0.0", None, 50.0)]
    for number, ratio in enumerate(ratios, 1):
        steps.append(step(f"{number}.0", f"{number - 1}.0", 70.0 * ratio * load, eager=100.0 * load, pair=70.0 * load))
    times = paired_times(steps)
    found = [times[f"{number}.0"] / times[f"{number - 1}.0"] for number in range(1, len(steps))]
    assert found == pytest.approx(ratios)


def test_a_candidate_from_the_reference_is_placed_by_its_incumbent_too() -> None:
    steps = [step("0.0", None, 50.0), step("0.1", None, 40.0), step("1.0", None, 60.0, pair=80.0, incumbent="0.1")]
    times = paired_times(steps)
    assert times["1.0"] / times["0.1"] == pytest.approx(0.75)
    assert times["0.0"] == pytest.approx(50.0)


def test_without_a_baseline_times_stay_as_they_were_measured() -> None:
    lone = step("0.0", None, 50.0)
    bare = replace(lone, measurement=replace(lone.measurement, baselines={}))
    assert paired_times([bare]) == {"0.0": 50.0}
