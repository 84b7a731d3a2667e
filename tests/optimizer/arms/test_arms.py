"""What every arm keeps, and what each is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import Bottleneck
from artifacts.memory.attention import ATTENDED, DirectionScore
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.trajectory import State
from optimizer.arms import ARMS, Arm, ArmContext, Choice, make_arm
from optimizer.arms.registry import WITHOUT_MEMORY
from optimizer.selection import SelectionSettings, pick_direction

SETTINGS = SelectionSettings(explore=0.0, least_margin=0.0, attention=ATTENDED)
WITH_MEMORY = [name for name in ARMS if name not in WITHOUT_MEMORY]


def arm_named(name: str, memory: Memory, settings: SelectionSettings = SETTINGS) -> Arm:
    return make_arm(name, memory, settings)


def learnt(memory: Memory, state: State, direction: str, reward: float, count: int) -> list[Transition]:
    like = next(iter(memory.transitions()))
    return [
        replace(
            like,
            transition_id=f"run/{number}",
            state=state,
            direction_id=direction,
            reward=reward,
            siblings=f"s{number}",
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_goes_by_its_name(name: str, memory: Memory, softmax_state: State) -> None:
    arm = arm_named(name, memory)
    assert arm.name == name
    assert arm.choose(ArmContext(state=softmax_state)).arm == name


@pytest.mark.parametrize("name", ARMS)
def test_equal_contexts_give_equal_choices(name: str, memory: Memory, softmax_state: State) -> None:
    context = ArmContext(state=softmax_state, seed="step 3")
    settings = SelectionSettings(explore=0.5)
    assert arm_named(name, memory, settings).choose(context) == arm_named(name, memory, settings).choose(context)


@pytest.mark.parametrize("name", ARMS)
def test_a_choice_survives_the_log(name: str, memory: Memory, softmax_state: State) -> None:
    choice = arm_named(name, memory).choose(ArmContext(state=softmax_state))
    assert decode(Choice, encode(choice)) == choice


@pytest.mark.parametrize("name", ARMS)
def test_what_is_chosen_can_be_looked_up_and_has_a_probability(name: str, memory: Memory, softmax_state: State) -> None:
    arm = arm_named(name, memory)
    choice = arm.choose(ArmContext(state=softmax_state))
    if not choice.label:
        assert choice.probability is None
        return
    assert choice.probability is not None
    assert 0 < choice.probability <= 1
    assert arm.memory is not None
    assert arm.memory.direction(choice.direction)
    assert all(arm.memory.strategy(use.strategy_id) for use in choice.strategies)


@pytest.mark.parametrize("name", ["htam", "no-local", "no-prefix", "uniform", "frozen", "bandit"])
def test_siblings_of_one_step_take_different_directions(name: str, memory: Memory, softmax_state: State) -> None:
    arm = arm_named(name, memory)
    first = arm.choose(ArmContext(state=softmax_state, seed="a"))
    second = arm.choose(ArmContext(state=softmax_state, seed="b", taken=frozenset([first.direction])))
    assert first.direction != second.direction


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_an_arm_that_needs_a_memory_says_so(name: str) -> None:
    with pytest.raises(BadInputError, match="needs a memory"):
        make_arm(name, None, SETTINGS)


def test_an_unknown_arm_lists_the_known_ones() -> None:
    with pytest.raises(BadInputError, match="htam"):
        make_arm("oracle", None, SETTINGS)


@pytest.mark.parametrize(("family", "helps"), [("softmax", "fusion"), ("reduction", "access"), ("matmul", "tiling")])
def test_htam_takes_the_direction_that_helped_the_family(
    family: str, helps: str, memory: Memory, softmax_state: State
) -> None:
    choice = arm_named("htam", memory).choose(ArmContext(state=replace(softmax_state, family=family)))
    assert choice.direction == helps
    assert [use.strategy_id.split(".")[0] for use in choice.strategies] == [helps] * len(choice.strategies)
    assert choice.strategies


def test_the_frozen_arm_does_not_learn_and_htam_does(memory: Memory, softmax_state: State) -> None:
    overlay = learnt(memory, softmax_state, "fusion", -4.0, 60)
    context = ArmContext(state=softmax_state, overlay=overlay)
    assert arm_named("htam", memory).choose(context).direction != "fusion"
    assert arm_named("frozen", memory).choose(context).direction == "fusion"


def test_without_local_memory_only_the_direction_is_named(memory: Memory, softmax_state: State) -> None:
    choice = arm_named("no-local", memory).choose(ArmContext(state=softmax_state))
    assert choice.direction == "fusion"
    assert choice.strategies == ()


def test_a_shuffled_memory_keeps_ids_and_mixes_what_they_say(memory: Memory) -> None:
    mixed = arm_named("shuffled", memory).memory
    assert mixed is not None
    assert [item.strategy_id for item in mixed.strategies] == [item.strategy_id for item in memory.strategies]
    said = [(item.name, other.name) for item, other in zip(memory.strategies, mixed.strategies, strict=True)]
    assert all(own != other for own, other in said)
    assert sorted(own for own, _ in said) == sorted(other for _, other in said)


def test_a_saturated_resource_is_masked(memory: Memory, softmax_state: State) -> None:
    done = replace(softmax_state, family="reduction", fraction_of_bound=0.95, bottleneck=Bottleneck.MEMORY)
    for name in ("htam", "bandit"):
        assert arm_named(name, memory).choose(ArmContext(state=done)).direction != "access"


def test_exploration_draws_about_its_share(memory: Memory, softmax_state: State) -> None:
    arm = arm_named("htam", memory, replace(SETTINGS, explore=0.3))
    choices = [arm.choose(ArmContext(state=softmax_state, seed=str(number))) for number in range(200)]
    explored = [choice for choice in choices if choice.explored]
    assert 35 <= len(explored) <= 85
    assert {choice.direction for choice in explored} == {"access", "fusion", "tiling"}
    assert {round(choice.probability or 0, 6) for choice in choices} <= {0.1, 0.8}


def test_too_little_evidence_closes_the_gate(memory: Memory, softmax_state: State) -> None:
    arm = arm_named("htam", memory, SelectionSettings(explore=0.0, least_evidence=1e6))
    choice = arm.choose(ArmContext(state=softmax_state))
    assert choice.direction == ""
    assert "no direction" in choice.gate
    assert choice.scores


def test_a_best_direction_that_does_not_stand_out_closes_the_gate(memory: Memory, softmax_state: State) -> None:
    far = arm_named("htam", memory, SelectionSettings(explore=0.0, least_margin=1e6))
    choice = far.choose(ArmContext(state=softmax_state))
    assert choice.direction == ""
    assert "no direction stands out" in choice.gate
    near = arm_named("htam", memory, SelectionSettings(explore=0.0, least_margin=0.1))
    assert near.choose(ArmContext(state=softmax_state)).direction == "fusion"


def score(name: str, mean: float, spread: float, effective_n: float) -> DirectionScore:
    return DirectionScore(
        direction_id=name, mean=mean, spread=spread, effective_n=effective_n, prior=0.0, masked="", evidence=()
    )


def test_a_direction_without_evidence_does_not_close_the_gate_on_one_that_has_it() -> None:
    scores = [score("untried", 1.0, 2.0, 0.0), score("proven", 0.9, 0.1, 1000.0), score("worse", 0.8, 0.1, 1000.0)]
    picked = pick_direction(scores, SelectionSettings(), "seed")
    assert (picked.direction, picked.probability, picked.gate) == ("proven", 1.0, "")


def test_a_closed_gate_names_the_objection_to_the_most_promising_direction_with_evidence() -> None:
    scores = [score("untried", 1.0, 2.0, 0.0), score("close", 0.1, 0.5, 9.0)]
    assert "+0.10 (sd 0.50)" in pick_direction(scores, SelectionSettings(), "seed").gate
    assert "worth 0.0 operators" in pick_direction(scores[:1], SelectionSettings(), "seed").gate


def test_strategies_without_evidence_here_do_not_crowd_out_one_that_has_it(
    memory: Memory, softmax_state: State
) -> None:
    known = next(strategy for strategy in memory.strategies if strategy.direction_id == "fusion")
    foreign = tuple(replace(known, strategy_id=f"fusion.foreign_{number}") for number in range(20))
    others = tuple(strategy for strategy in memory.strategies if strategy.direction_id != "fusion")
    rows = [
        replace(row, strategy_id=known.strategy_id) if row.direction_id == "fusion" else row
        for row in memory.transitions()
    ]
    like = next(row for row in rows if row.direction_id == "fusion" and row.reward is not None)
    elsewhere = [
        replace(
            like,
            transition_id=f"foreign/{number}",
            strategy_id=strategy.strategy_id,
            state=replace(like.state, language=Language.CUDA),
            reward=6.0,
            siblings=f"foreign/{number}",
        )
        for number, strategy in enumerate(foreign)
    ]
    table = transition_rows([*rows, *elsewhere])
    crowded = refreshed(replace(memory, strategies=(*others, known, *foreign), table=table))
    arm = make_arm("htam", crowded, SelectionSettings(least_margin=0.0))
    choice = arm.choose(ArmContext(state=softmax_state))
    assert choice.direction == "fusion"
    assert [use.strategy_id for use in choice.strategies] == [known.strategy_id]


@pytest.mark.parametrize("closed", [{"least_evidence": 1e6}, {"least_margin": 1e6}])
def test_behind_a_closed_gate_a_direction_has_the_probability_of_the_random_draw_alone(
    closed: dict[str, float], memory: Memory, softmax_state: State
) -> None:
    arm = arm_named("htam", memory, SelectionSettings(explore=0.6, **closed))
    choices = [arm.choose(ArmContext(state=softmax_state, seed=str(number))) for number in range(50)]
    drawn = [choice for choice in choices if choice.direction]
    assert len({choice.direction for choice in drawn}) == 3
    assert {round(choice.probability or 0, 6) for choice in drawn} == {0.2}
    assert {choice.probability for choice in choices if not choice.direction} == {None}


def test_the_random_arm_takes_every_direction_equally_often(memory: Memory, softmax_state: State) -> None:
    arm = arm_named("random", memory)
    choices = [arm.choose(ArmContext(state=softmax_state, seed=str(number))) for number in range(300)]
    counts = [sum(choice.direction == name for choice in choices) for name in ("access", "fusion", "tiling")]
    assert min(counts) > 70
    assert all(choice.explored and choice.strategies for choice in choices if choice.direction == "fusion")


def test_ablations_of_attention_score_differently(memory: Memory, softmax_state: State) -> None:
    state = replace(softmax_state, history=("tiling", "fusion"))
    names = ("htam", "attention", "no-prefix", "uniform")
    scores = {
        name: make_arm(name, memory, SelectionSettings()).choose(ArmContext(state=state)).scores for name in names
    }
    assert len({tuple(score.mean for score in found) for found in scores.values()}) == len(names)
