from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.trajectory import Provenance, Step, time_ratio

ORIGIN = Provenance(format="test", importer_version=1, file="log", file_sha256="0" * 64)
PARENT = Step(
    step_id="a",
    parent_id=None,
    index=0,
    code="x",
    language=Language.CUDA,
    outcome=Outcome.CORRECT,
    provenance=ORIGIN,
    runtime_us=100.0,
)
CHILD = replace(PARENT, step_id="b", parent_id="a", runtime_us=400.0)


def test_times_of_two_moments_are_divided() -> None:
    assert time_ratio(PARENT, CHILD) == 0.25


def test_a_ratio_measured_side_by_side_goes_before_times_of_two_moments() -> None:
    assert time_ratio(PARENT, replace(CHILD, ratio_to_parent=1.1)) == 1.1


@pytest.mark.parametrize("outcome", [Outcome.WRONG_RESULT, Outcome.REJECTED])
def test_a_ratio_needs_two_correct_ends(outcome: Outcome) -> None:
    failed = replace(PARENT, outcome=outcome, runtime_us=None)
    assert time_ratio(failed, replace(CHILD, ratio_to_parent=1.1)) is None
