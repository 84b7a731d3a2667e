import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import GuardFinding, Measurement, Outcome, Timing

positive = st.floats(min_value=1e-3, max_value=1e9)


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    low, median, high = sorted(draw(st.lists(positive, min_size=3, max_size=3)))
    samples = tuple(draw(st.lists(positive, max_size=5)))
    return Timing(median_us=median, low_us=low, high_us=high, samples_us=samples)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    outcome = draw(st.sampled_from(Outcome))
    correct = outcome is Outcome.CORRECT
    return Measurement(
        outcome=outcome,
        stage=draw(st.sampled_from(["guard", "build", "timing"])),
        device=draw(st.text(max_size=10)),
        error="" if correct else draw(st.text(min_size=1)),
        timing=draw(timings()) if correct else None,
        baselines=draw(st.dictionaries(st.text(max_size=5), timings(), max_size=2)),
        findings=tuple(GuardFinding(rule=r, message="m") for r in draw(st.lists(st.text(), max_size=2))),
        notes=tuple(draw(st.lists(st.text(), max_size=3))),
    )


@given(measurements())
def test_a_measurement_survives_json(measurement: Measurement) -> None:
    assert decode(Measurement, json.loads(json.dumps(encode(measurement)))) == measurement


@pytest.mark.parametrize(
    ("change", "named"),
    [({"outcome": "fine"}, "outcome"), ({"speed": 3}, "speed"), ({"timing": 3}, "timing"), ({"stage": None}, "stage")],
)
def test_a_bad_field_is_named(change: dict[str, object], named: str) -> None:
    good = encode(Measurement(outcome=Outcome.TIMEOUT, stage="build", device="cpu", error="too slow"))
    with pytest.raises(BadInputError, match=named):
        decode(Measurement, good | change)


def test_a_failure_cannot_carry_a_time() -> None:
    timing = Timing(median_us=1.0, low_us=1.0, high_us=1.0)
    with pytest.raises(ValueError, match="contradict"):
        Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="off by one", timing=timing)
