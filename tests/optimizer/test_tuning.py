import ast
import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from artifacts.measurement import Measurement, Outcome, Timing
from optimizer.tuning import Tuned, TuningSettings, declared, tune

FEW = "A = 2\nB = 20\nTUNABLES = {'A': [2, 1, 3], 'B': [20, 10]}\n"
MANY = "A = 0\nB = 0\nC = 0\nTUNABLES = {'A': [0, 1, 2, 3, 4, 5], 'B': [0, 1, 2, 3, 4, 5], 'C': [0, 1, 2, 3, 4, 5]}\n"


def values_of(source: str) -> dict[str, int]:
    body = ast.parse(source).body
    return {node.targets[0].id: ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]


def correct(time: float, gpu_s: float = 1.0) -> Measurement:
    timing = Timing(median_us=time, low_us=time, high_us=time)
    return Measurement(outcome=Outcome.CORRECT, stage="timing", device="d", timing=timing, gpu_s=gpu_s)


FAILED = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="d", error="too much shared memory")


class Measurer:
    """Measures by a formula and keeps what it was asked."""

    def __init__(self, formula: Callable[[dict[str, int]], Measurement]) -> None:
        self.formula = formula
        self.batches: list[list[str]] = []

    async def __call__(self, sources: Mapping[str, str]) -> Sequence[Measurement]:
        self.batches.append(list(sources))
        return [self.formula(values_of(source)) for source in sources.values()]


def run(source: str, measurer: Measurer, **settings: object) -> Tuned:
    found = declared(source)
    assert found is not None
    start = measurer.formula(dict(found.assigned))
    chosen = TuningSettings(**({"gpu_s": 1000.0} | settings))  # type: ignore[arg-type]
    return asyncio.run(tune(source, found, start, measurer, chosen))


def test_few_settings_are_all_measured_and_the_fastest_wins() -> None:
    measurer = Measurer(lambda at: correct(100.0 + 10 * at["A"] + at["B"]))
    tuned = run(FEW, measurer, batch=2)
    assert tuned.improved
    assert tuned.setting == {"A": 1, "B": 10}
    assert values_of(tuned.source)["A"] == 1
    labels = sorted(label for batch in measurer.batches for label in batch)
    assert labels == ["A=1,B=10", "A=1,B=20", "A=2,B=10", "A=3,B=10", "A=3,B=20"]
    assert [len(batch) for batch in measurer.batches] == [2, 2, 1]


def test_a_gain_within_the_noise_changes_nothing() -> None:
    tuned = run(FEW, Measurer(lambda at: correct(1000.0 + at["A"])))
    assert not tuned.improved
    assert tuned.source == FEW
    assert len(tuned.trials) == 5


def test_settings_that_fail_are_never_the_best() -> None:
    tuned = run(FEW, Measurer(lambda at: correct(100.0) if (at["A"], at["B"]) == (2, 20) else FAILED))
    assert not tuned.improved
    assert len(tuned.trials) == 5


def test_the_paired_test_of_the_evaluator_has_the_last_word() -> None:
    tuned = run(FEW, Measurer(lambda at: replace(correct(100.0 * at["A"]), faster_than_incumbent=at["A"] != 1)))
    assert not tuned.improved


def test_many_settings_are_sampled_within_the_trials_without_repetition() -> None:
    measurer = Measurer(lambda at: correct(100.0 + (at["A"] - 3) ** 2 + (at["B"] - 4) ** 2 + (at["C"] - 1) ** 2))
    tuned = run(MANY, measurer, trials=40, least_gain=0.0)
    labels = [label for batch in measurer.batches for label in batch]
    assert len(labels) == len(set(labels)) == 40
    assert tuned.measurement.timing is not None
    assert tuned.measurement.timing.median_us < 104.0  # the candidate itself has 126, a random setting about 112


def test_the_search_stops_when_the_measuring_time_is_used() -> None:
    tuned = run(MANY, Measurer(lambda at: correct(100.0, gpu_s=1.0)), gpu_s=6.0, batch=4)
    assert len(tuned.trials) == 8


def test_equal_measurements_lead_to_equal_searches() -> None:
    searches = []
    for _ in range(2):
        measurer = Measurer(lambda at: correct(100.0 + at["A"] * at["B"] - at["C"]) if at["C"] != 2 else FAILED)
        run(MANY, measurer, trials=30)
        searches.append(measurer.batches)
    assert searches[0] == searches[1]


@pytest.mark.parametrize("wrong", [{"gpu_s": 0.0}, {"trials": 0}, {"batch": 0}, {"least_gain": -0.1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="gpu_s"):
        TuningSettings(**wrong)  # type: ignore[arg-type]
