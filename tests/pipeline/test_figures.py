import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.report.figures import fast_p, pair, summarise

speedups = st.lists(st.one_of(st.none(), st.floats(min_value=0.01, max_value=100.0)), max_size=12)


def test_a_failed_task_counts_one_in_the_mean_over_all() -> None:
    summary = summarise([4.0, None])
    assert summary.over_correct == pytest.approx(4.0)
    assert summary.over_all == pytest.approx(2.0)
    assert summary.coverage == 0.5


def test_nothing_has_no_mean() -> None:
    summary = summarise([])
    assert (summary.over_correct, summary.over_all, summary.coverage) == (None, None, 0.0)


def test_fast_p_counts_failures_in_the_denominator_and_is_strict() -> None:
    assert fast_p([2.0, 1.0, None, 0.5], 1.0) == 0.25


@given(speedups)
def test_fast_p_never_rises_with_p(values: list[float | None]) -> None:
    shares = [fast_p(values, p) for p in (0.0, 0.5, 1.0, 2.0, 8.0)]
    assert shares == sorted(shares, reverse=True)


def test_pairs_are_formed_over_shared_tasks_only() -> None:
    pairing = pair({"a": 2.0, "b": 1.0, "c": 9.0}, {"a": 1.0, "b": 1.0, "d": 9.0})
    assert pairing
    assert (pairing.tasks, pairing.wins, pairing.ties, pairing.losses) == (2, 1, 1, ())
    assert pairing.ratio == pytest.approx(math.sqrt(2.0))


def test_the_tasks_on_which_an_arm_is_slower_are_named() -> None:
    pairing = pair({"a": None, "b": 1.0}, {"a": 2.0, "b": 1.0})
    assert pairing
    assert pairing.losses == ("a",)


def test_arms_without_a_shared_task_cannot_be_paired() -> None:
    assert pair({"a": 1.0}, {"b": 1.0}) is None


def test_a_clear_difference_over_many_tasks_is_decided() -> None:
    first = {str(index): 2.0 + 0.01 * index for index in range(8)}
    pairing = pair(first, dict.fromkeys(first, 1.0))
    assert pairing
    assert pairing.decided
