import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from artifacts.measurement import Bottleneck
from artifacts.memory import attention
from artifacts.memory.attention import (
    ATTENDED,
    AttentionSettings,
    DirectionScore,
    attend,
    expected_gain,
)
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.trajectory import State

SETTINGS = replace(ATTENDED, kappa=4.0)


def score_directions(
    memory: Memory, overlay: Sequence[Transition], state: State, settings: AttentionSettings
) -> tuple[DirectionScore, ...]:
    return attend(memory, overlay, state, settings).directions()


def by_id(memory: Memory, state: State, settings: AttentionSettings = SETTINGS) -> dict[str, float]:
    return {item.direction_id: item.mean for item in score_directions(memory, (), state, settings)}


def state_of(transitions: list[Transition], family: str) -> State:
    return next(item.state for item in transitions if item.state.family == family)


@pytest.mark.parametrize(("family", "best"), [("softmax", "fusion"), ("reduction", "memory_access")])
def test_what_helped_in_like_states_comes_first(
    memory: Memory, transitions: list[Transition], family: str, best: str
) -> None:
    means = by_id(memory, state_of(transitions, family))
    assert max(means, key=lambda name: means[name]) == best


def test_the_same_question_gets_the_same_answer(memory: Memory, transitions: list[Transition]) -> None:
    state = transitions[5].state
    assert score_directions(memory, transitions[:3], state, SETTINGS) == score_directions(
        memory, transitions[:3], state, SETTINGS
    )


def test_one_view_answers_as_two_questions_do_and_looks_at_the_past_once(
    memory: Memory, transitions: list[Transition], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, overlay = transitions[5].state, transitions[:3]
    looks: list[State] = []
    plain = attention.experience
    monkeypatch.setattr(attention, "experience", lambda *args, **named: looks.append(args[2]) or plain(*args, **named))
    view = attend(memory, overlay, state, SETTINGS)
    directions, strategies = view.directions(), view.strategies(None, 5)
    assert looks == [state]
    assert directions == score_directions(memory, overlay, state, SETTINGS) == view.directions()
    assert strategies == attend(memory, overlay, state, SETTINGS).strategies(None, 5)


def test_the_order_of_experience_does_not_matter(
    memory: Memory, transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    mixed = list(transitions)
    random.Random(1).shuffle(mixed)
    state = transitions[7].state
    assert by_id(build(mixed), state) == pytest.approx(by_id(memory, state))


def test_more_operators_narrow_the_spread(transitions: list[Transition], build: Callable[..., Memory]) -> None:
    known = sorted({item.task.task_id for item in transitions})[::3]
    few, many = build([item for item in transitions if item.task.task_id in known]), build(transitions)
    state = transitions[1].state
    spreads = [
        {item.direction_id: item.spread for item in score_directions(memory, (), state, SETTINGS)}
        for memory in (few, many)
    ]
    assert all(spreads[1][name] < spreads[0][name] for name in spreads[0])


def test_more_steps_of_the_same_operators_are_no_more_evidence(
    transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    again = [
        replace(item, transition_id=f"again/{number}", siblings=f"again/{item.siblings}")
        for number, item in enumerate(transitions)
    ]
    state = transitions[1].state
    once, twice = (
        score_directions(made, (), state, SETTINGS) for made in (build(transitions), build([*transitions, *again]))
    )
    for before, after in zip(once, twice, strict=True):
        assert before.effective_n <= after.effective_n <= 12


def test_the_overlay_moves_the_mean_towards_what_was_just_learnt(memory: Memory, transitions: list[Transition]) -> None:
    state = transitions[1].state
    lesson = [
        replace(
            transitions[1],
            transition_id=f"now/{number}",
            siblings="now>",
            direction_id=direction,
            reward=reward,
            state=state,
            weight=1.0,
        )
        for number, (direction, reward) in enumerate([("tuning", 2.0), ("tuning", 2.0), ("fusion", -1.0)])
    ]
    before = {item.direction_id: item for item in score_directions(memory, (), state, SETTINGS)}
    after = {item.direction_id: item for item in score_directions(memory, lesson, state, SETTINGS)}
    assert after["tuning"].mean > before["tuning"].mean
    assert after["fusion"].mean < before["fusion"].mean
    assert any(name.startswith("now/") for name, _ in after["tuning"].evidence)


def test_evidence_names_transitions_of_the_direction(memory: Memory, transitions: list[Transition]) -> None:
    direction_of = {item.transition_id: item.direction_id for item in transitions}
    for score in score_directions(memory, (), transitions[4].state, SETTINGS):
        assert score.evidence
        assert {direction_of[name] for name, _ in score.evidence} == {score.direction_id}
        shares = [abs(share) for _, share in score.evidence]
        assert shares == sorted(shares, reverse=True)


def test_a_saturated_resource_masks_the_directions_that_relieve_it(
    memory: Memory, transitions: list[Transition]
) -> None:
    state = replace(transitions[0].state, bottleneck=Bottleneck.MEMORY, fraction_of_bound=0.95)
    masked = {item.direction_id: item.masked for item in score_directions(memory, (), state, SETTINGS)}
    assert "95%" in masked["memory_access"]
    assert masked["fusion"] == masked["tuning"] == ""
    free = replace(state, fraction_of_bound=0.5)
    assert not any(item.masked for item in score_directions(memory, (), free, SETTINGS))


def test_the_prefix_counts_only_when_it_is_switched_on(memory: Memory, transitions: list[Transition]) -> None:
    state = replace(transitions[0].state, history=("fusion", "tuning"))
    other = replace(state, history=("memory_access", "memory_access"))
    off = replace(SETTINGS, prefix=0.0)
    assert by_id(memory, state, off) == by_id(memory, other, off)
    assert by_id(memory, state) != by_id(memory, other)


def test_a_lineage_that_the_memory_does_not_know_is_not_taken_for_none(
    memory: Memory, transitions: list[Transition]
) -> None:
    rows = [replace(item, state=replace(item.state, history=())) for item in transitions[::2]]
    known = refreshed(replace(memory, table=transition_rows([*rows, *transitions[1::2]])))
    state = replace(transitions[0].state, history=("of another memory",))
    assert by_id(known, state) == by_id(known, replace(state, history=()))


def test_by_default_all_states_of_a_family_and_device_are_alike(memory: Memory, transitions: list[Transition]) -> None:
    state = state_of(transitions, "softmax")
    other = replace(state, step=state.step + 5, features=frozenset(), history=("fusion",), fraction_of_bound=0.1)

    def added(state: State) -> dict[str, float]:
        base = expected_gain(memory, state)
        return {name: mean - base for name, mean in by_id(memory, state, AttentionSettings()).items()}

    assert added(state) == pytest.approx(added(other))
    assert added(state) != pytest.approx(added(replace(state, family="reduction")))
    attended = {name: mean - expected_gain(memory, other) for name, mean in by_id(memory, other, ATTENDED).items()}
    assert attended != pytest.approx(
        {name: mean - expected_gain(memory, state) for name, mean in by_id(memory, state, ATTENDED).items()}
    )


def test_an_architecture_that_is_discounted_to_nothing_is_not_heard(
    memory: Memory, transitions: list[Transition]
) -> None:
    state = replace(transitions[0].state, arch="sm_999")
    silent = replace(SETTINGS, arch_discount=0.0)
    for score in score_directions(memory, (), state, silent):
        assert score.effective_n == 0.0
        assert score.mean == pytest.approx(score.prior)


def test_strategies_are_those_of_the_direction_and_conditions_come_first(
    memory: Memory, transitions: list[Transition]
) -> None:
    state = state_of(transitions, "softmax")
    found = attend(memory, (), state, SETTINGS).strategies("fusion", 3)
    assert [item.strategy.strategy_id for item in found] == ["fusion.0"]
    flat = attend(memory, (), state, SETTINGS).strategies(None, 2)
    assert len(flat) == 2
    assert flat[0].strategy.strategy_id == "fusion.0"
    assert flat[0].holds


def test_a_memory_without_transitions_scores_nothing(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    empty = build([])
    assert score_directions(empty, (), transitions[0].state, SETTINGS) == ()
    assert attend(empty, (), transitions[0].state, SETTINGS).strategies(None, 3) == ()
    assert np.isfinite(expected_gain(empty, transitions[0].state))


def test_a_memory_of_failures_alone_still_answers(build: Callable[..., Memory], transitions: list[Transition]) -> None:
    failed = [item for item in transitions if item.reward is None]
    for score in score_directions(build(failed), (), transitions[0].state, SETTINGS):
        assert np.isfinite(score.mean)
        assert np.isfinite(score.spread)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"kappa": 0.0}, {"decay": 1.5}, {"arch_discount": -0.1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|lie in"):
        AttentionSettings(**wrong)  # type: ignore[arg-type]
