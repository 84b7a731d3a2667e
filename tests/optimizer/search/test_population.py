from __future__ import annotations

from typing import Any

import pytest

from artifacts.measurement import Measurement, Outcome, Timing
from optimizer.search.population import Node, Population
from optimizer.search.settings import SearchSettings


def timing(value: float) -> Timing:
    return Timing(median_us=value, low_us=value, high_us=value)


def node(step_id: str, parent: str | None = None, *, us: float | None = None, **other: Any) -> Node:
    """A candidate that runs in ``us`` microseconds where eager takes 100, or that failed."""
    incumbent = other.pop("incumbent", None)
    faster = other.pop("faster", None)
    outcome = other.pop("outcome", Outcome.COMPILE_ERROR)
    if us is None:
        measured = Measurement(outcome=outcome, stage="build", device="cpu", error="no")
    else:
        measured = Measurement(
            outcome=Outcome.CORRECT,
            stage="timing",
            device="cpu",
            timing=timing(us),
            baselines={"eager_fp32": timing(100.0)},
            incumbent=None if incumbent is None else timing(incumbent),
            faster_than_incumbent=faster,
        )
    values = {
        "mode": "optimize",
        "source": step_id,
        "sha256": step_id,
        "plan": "",
        "direction": "",
        "strategies": (),
        "incumbent_id": parent if incumbent is not None else None,
    }
    index = int(step_id.split(".")[0])
    return Node(step_id=step_id, parent_id=parent, index=index, measurement=measured, **(values | other))


def population(*nodes: Node, **settings: Any) -> Population:
    found = Population(SearchSettings(**settings))
    for item in nodes:
        found.add(item)
    return found


def ids(found: list[Node | None]) -> list[str | None]:
    return [None if item is None else item.step_id for item in found]


def test_an_empty_population_starts_from_the_reference() -> None:
    assert population().parents(2) == [None, None]


def test_a_failure_of_the_last_step_is_repaired_before_anything_else() -> None:
    found = population(node("0.0", us=50), node("1.0", "0.0"))
    assert ids(found.parents(1)) == ["1.0"]


def test_a_chain_of_failures_is_given_up_after_its_repairs() -> None:
    found = population(node("0.0", us=50), node("1.0", "0.0"), node("2.0", "1.0"), node("3.0", "2.0"), repairs=2)
    assert ids(found.parents(1)) == ["0.0"]


def test_a_first_implementation_that_cannot_be_mended_is_written_anew() -> None:
    assert population(node("0.0"), node("1.0", "0.0"), repairs=1).parents(1) == [None]


def test_infrastructure_failures_are_nobody_to_repair() -> None:
    found = population(node("0.0", us=50), node("1.0", "0.0", outcome=Outcome.INFRA_ERROR))
    assert ids(found.parents(1)) == ["0.0"]
    assert found.fruitless(found.node("0.0")) == 0


def test_the_fastest_candidate_is_the_first_parent() -> None:
    found = population(node("0.0", us=80), node("0.1", us=40), node("0.2", us=60))
    assert ids(found.parents(1)) == ["0.1"]


def test_a_second_parent_that_is_different_enough_is_preferred_to_the_same_twice() -> None:
    near, apart = frozenset({"a", "b"}), frozenset({"c", "d"})
    found = population(
        node("0.0", us=40, features=near), node("0.1", us=45, features=near), node("0.2", us=50, features=apart)
    )
    assert ids(found.parents(2)) == ["0.0", "0.2"]


def test_a_second_parent_that_is_far_too_slow_is_not() -> None:
    found = population(node("0.0", us=40, features=frozenset({"a"})), node("0.1", us=90, features=frozenset({"b"})))
    assert ids(found.parents(2)) == ["0.0", "0.0"]


def test_a_candidate_whose_children_never_help_is_left_after_the_window() -> None:
    slower = [node(f"{step}.0", "0.0", us=60, incumbent=40, faster=False) for step in range(1, 4)]
    start = [node("0.0", us=40), node("0.1", us=55)]
    assert ids(population(*start, *slower, window=4).parents(1)) == ["0.0"]
    assert ids(population(*start, *slower, window=3, diversity=0.0).parents(1)) == ["0.1"]


def test_a_direction_has_two_chances_with_one_parent() -> None:
    def tries(*ends: bool) -> Population:
        children = [
            node(f"{number}.0", "0.0", us=60, incumbent=40, faster=end, direction="fusion")
            for number, end in enumerate(ends, 1)
        ]
        return population(node("0.0", us=40), *children)

    assert tries(False).exhausted(tries().node("0.0")) == set()
    assert tries(False, False).exhausted(tries().node("0.0")) == {"fusion"}
    assert tries(False, True, False).exhausted(tries().node("0.0")) == set()
    assert tries(False, False).exhausted(None) == set()


def test_one_good_child_ends_a_stagnation() -> None:
    found = population(
        node("0.0", us=40),
        node("1.0", "0.0", us=60, incumbent=40, faster=False),
        node("2.0", "0.0", us=30, incumbent=40, faster=True),
    )
    assert found.fruitless(found.node("0.0")) == 0


def test_a_child_that_the_paired_test_does_not_call_faster_is_not_the_best() -> None:
    found = population(node("0.0", us=40), node("1.0", "0.0", us=39.9, incumbent=40, faster=False))
    assert found.best is found.node("0.0")


def test_scores_follow_paired_measurements_not_the_drift_between_them() -> None:
    """The host got twice as fast between the two measurements; the child is a quarter faster, not 2.5 times."""
    found = population(node("0.0", us=50), node("1.0", "0.0", us=20, incumbent=25, faster=True))
    gain = found.score(found.node("1.0")) - found.score(found.node("0.0"))
    assert gain == pytest.approx(0.3219, abs=1e-3)


def test_a_child_of_a_failure_is_timed_against_the_nearest_correct_ancestor() -> None:
    found = population(node("0.0", us=50), node("0.1", us=20), node("1.0", "0.0"), node("2.0", "1.0"))
    assert found.incumbent(found.node("2.0")) is found.node("0.0")
    assert found.incumbent(None) is found.node("0.1")
