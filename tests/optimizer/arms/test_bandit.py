"""The bandit over clusters of candidates and directions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.arms import ArmContext, Member, make_arm
from optimizer.arms.bandit import CLUSTERS, BanditArm, clusters
from optimizer.selection import SelectionSettings
from tests.optimizer.arms.members import member


@pytest.fixture
def arm(memory: Memory) -> BanditArm:
    found = make_arm("bandit", memory, SelectionSettings())
    assert isinstance(found, BanditArm)
    return found


def children(direction: str, us: float, count: int, first: int = 1) -> list[Member]:
    """Children of step 0.0, which takes 100 us."""
    return [
        member(f"{number}.0", "0.0", us=us, incumbent_us=100.0, direction=direction, alive=False)
        for number in range(first, first + count)
    ]


def test_clusters_part_the_fast_from_the_slow_and_keep_everybody() -> None:
    found = clusters([member(f"{number}.0", us=us) for number, us in enumerate([100, 98, 101, 10, 11, 10.5, 9.5, 99])])
    assert 2 <= len(found) <= CLUSTERS
    fast = {"3.0", "4.0", "5.0", "6.0"}
    for group in found:
        names = {one.step_id for one in group}
        assert names <= fast or not names & fast
    assert sum(map(len, found)) == 8


def test_centres_move_only_when_the_number_of_candidates_has_doubled() -> None:
    four = [member(f"{number}.0", us=us) for number, us in enumerate([100.0, 99.0, 10.0, 11.0])]
    five = [*four, member("4.0", us=1.0)]
    assert [{one.step_id for one in group} - {"4.0"} for group in clusters(five)] == [
        {one.step_id for one in group} for group in clusters(four)
    ]


def test_candidates_that_failed_belong_to_no_cluster() -> None:
    assert clusters([member("0.0", us=None)]) == ()
    assert clusters([member("0.0", us=None), member("1.0")]) == ((member("1.0"),),)


def test_what_saved_time_is_taken_again_once_everything_was_tried(arm: BanditArm, softmax_state: State) -> None:
    members = (
        member("0.0"),
        *children("access", 100.0, 30),
        *children("fusion", 100.0, 30, 31),
        *children("tiling", 5.0, 30, 61),
    )
    alive = tuple(replace(one, alive=one.step_id == "0.0") for one in members)
    state = replace(softmax_state, fraction_of_bound=0.1)
    assert arm.choose(ArmContext(state=state, parent="0.0", members=alive)).direction == "tiling"


def test_a_direction_that_was_not_tried_comes_first(arm: BanditArm, softmax_state: State) -> None:
    members = (member("0.0"), *children("access", 50.0, 1), *children("tiling", 50.0, 1, 2))
    same = tuple(replace(one, score=0.0) for one in members)
    assert arm.choose(ArmContext(state=softmax_state, parent="0.0", members=same)).direction == "fusion"


@pytest.mark.parametrize(("percent", "open_"), [(74.0, True), (75.0, False)])
def test_counters_mask_a_resource_from_75_per_cent(
    percent: float, open_: bool, arm: BanditArm, softmax_state: State
) -> None:
    members = (member("0.0", metrics={"dram_percent": percent, "sm_percent": 20.0}),)
    contexts = [ArmContext(state=softmax_state, parent="0.0", members=members, seed=str(seed)) for seed in range(60)]
    assert ("access" in {arm.choose(context).direction for context in contexts}) is open_


def test_the_parent_lies_in_the_cluster_of_the_best_pair_and_can_be_improved(
    arm: BanditArm, softmax_state: State
) -> None:
    members = (member("0.0"), member("1.0", us=50.0, alive=False), member("2.0", us=None))
    starts = {arm.start(ArmContext(state=softmax_state, parent="1.0", members=members, seed=str(n))) for n in range(20)}
    assert starts == {"0.0"}


def test_without_a_correct_candidate_it_starts_where_the_search_does(arm: BanditArm, softmax_state: State) -> None:
    context = ArmContext(state=softmax_state, mode="first")
    assert arm.choose(context).direction
    assert arm.start(context) == ""
