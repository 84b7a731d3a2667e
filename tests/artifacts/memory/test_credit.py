from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from artifacts.codec import decode, encode
from artifacts.measurement import Outcome
from artifacts.memory.effects import holds, learned_conditions
from artifacts.memory.expectation import (
    Correction,
    Expectation,
    credited,
    cross_fitted,
    gains,
    learned_correction,
)
from artifacts.memory.htg import Memory
from artifacts.memory.records import Condition, Transition


def predicted(expectation: Expectation, memory: Memory) -> np.ndarray:
    """Expected gain of each row."""
    return expectation.correction.of(expectation.line(memory.columns))


def test_failures_of_a_timed_parent_cost_the_floor_and_wins_are_capped(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    measured = next(item for item in transitions if item.reward is not None)
    failed = next(item for item in transitions if item.reward is None)
    cases = [
        replace(measured, transition_id="a", reward=9.0),
        replace(measured, transition_id="b", reward=-9.0),
        replace(failed, transition_id="c"),
        replace(failed, transition_id="d", parent_us=None),
        replace(measured, transition_id="e", reward=0.5),
    ]
    found = gains(build(cases).columns)
    assert found[:3].tolist() == [4.0, -1.0, -1.0]
    assert np.isnan(found[3])
    assert found[4] == 0.5


def test_what_all_siblings_share_is_credited_to_none(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    measured = next(item for item in transitions if item.reward is not None)
    rewards = {"easy": [3.0, 3.2, 2.8], "hard": [-0.2, 0.0, 0.2]}
    rows = [
        replace(measured, transition_id=f"{group}{i}", siblings=group, reward=reward, weight=1.0)
        for group, values in rewards.items()
        for i, reward in enumerate(values)
    ]
    columns = build(rows).columns
    of_others = np.array([3.0, 2.9, 3.1, 0.1, 0.0, -0.1], np.float32)
    advantage, _ = credited(columns, gains(columns), of_others)
    assert advantage.tolist() == pytest.approx([0.0, 0.3, -0.3, -0.3, 0.0, 0.3], abs=1e-3)


def test_a_lone_step_is_judged_by_the_state_and_weighs_less(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    measured = next(item for item in transitions if item.reward is not None)
    columns = build([replace(measured, reward=1.0)]).columns
    expected = np.array([0.4], np.float32)
    advantage, sure = credited(columns, gains(columns), expected)
    assert advantage.tolist() == pytest.approx([0.6])
    assert sure.tolist() == pytest.approx([0.2])


def test_one_operator_is_on_one_side_however_its_tasks_are_called(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    memory = build(
        replace(item, task=replace(item.task, task_id=f"{('cpu', 'cuda')[number % 2]}/-/rms_norm"))
        if item.task.task_id == transitions[0].task.task_id
        else item
        for number, item in enumerate(transitions)
    )
    columns, target = memory.columns, memory.gains
    own = columns.task.among(memory.same_operators(["cpu/-/rms_norm"]))
    spoiled = np.where(own, target + 3, target).astype(np.float32)
    assert np.allclose(cross_fitted(columns, target)[own], cross_fitted(columns, spoiled)[own])


def test_the_expectation_of_a_task_does_not_depend_on_its_own_gains(memory: Memory) -> None:
    columns, target = memory.columns, memory.gains
    own = columns.task.values == columns.task.values[0]
    spoiled = np.where(own, target + 3, target).astype(np.float32)
    before = cross_fitted(columns, target)
    after = cross_fitted(columns, spoiled)
    assert np.allclose(before[own], after[own])
    assert not np.allclose(before[~own], after[~own])


def test_predicting_rows_and_states_agrees(memory: Memory, transitions: list[Transition]) -> None:
    ordered = sorted(transitions, key=lambda item: item.transition_id)
    rows = predicted(memory.expectation, memory)
    states = [memory.expectation.predict_state(item.state) for item in ordered]
    assert rows.tolist() == pytest.approx(states, abs=1e-4)


def test_where_a_strategy_helps_becomes_its_condition(memory: Memory) -> None:
    when = {strategy.strategy_id: strategy.when for strategy in memory.strategies}
    assert next(item.words for item in when["fusion.0"]) == "the operator is softmax"
    # Beside softmax, where fusion beats it, memory access looks bad: either wording says where it helps.
    assert when["memory_access.0"][0].words in ("the operator is reduction", "the operator is not softmax")


def test_chance_alone_makes_hardly_any_condition(memory: Memory) -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(30):
        noise = rng.permutation(np.nan_to_num(memory.advantages)).astype(np.float32)
        found += len(learned_conditions(memory.columns, noise, memory.columns.direction.values == 0))
    assert found <= 3


def test_conditions_hold_as_they_say(transitions: list[Transition]) -> None:
    state = replace(transitions[0].state, family="softmax", features=frozenset({"shuffle"}), log2_speedup=1.0)

    def condition(field: str, op: str, value: str | float) -> Condition:
        return Condition(field=field, op=op, value=value, words="")

    assert holds(condition("family", "==", "softmax"), state)
    assert not holds(condition("family", "!=", "softmax"), state)
    assert holds(condition("feature:shuffle", "has", "shuffle"), state)
    assert holds(condition("feature:unroll", "lacks", "unroll"), state)
    assert holds(condition("log2_speedup", ">=", 1.0), state)
    assert not holds(condition("log2_speedup", "<", 1.0), state)
    assert holds(condition("log2_speedup", "<", 0.0), replace(state, log2_speedup=None))


def test_a_stored_expectation_says_what_the_fitted_one_does(memory: Memory) -> None:
    corrected = replace(memory.expectation, correction=Correction((-0.5, 0.25, 1.0), (-0.4, 0.0, 1.5)))
    again = decode(Expectation, encode(corrected.rounded()))
    assert again.correction == corrected.correction
    assert np.allclose(predicted(again, memory), predicted(corrected, memory), atol=1e-4)


def test_a_line_through_bent_outcomes_is_bent_for_tasks_that_it_has_not_seen() -> None:
    rng = np.random.default_rng(5)
    truth = rng.uniform(-1, 1, 6_000).astype(np.float32)
    seen = (np.where(truth < 0, -0.5, truth) + rng.normal(0, 0.3, 6_000)).astype(np.float32)
    weight = np.ones(3_000, np.float32)
    correction = learned_correction(truth[:3_000], seen[:3_000], weight)
    assert np.all(np.diff(correction.observed) >= 0)
    for low, high in ((-1, -0.5), (-0.5, -0.1), (0.1, 0.5), (0.5, 1)):
        part = (truth[3_000:] > low) & (truth[3_000:] < high)
        off = (correction.of(truth[3_000:]) - seen[3_000:])[part].mean()
        assert abs(off) < 0.1


def test_few_steps_correct_nothing() -> None:
    few = np.linspace(-1, 1, 40).astype(np.float32)
    assert learned_correction(few, -few, np.ones(40, np.float32)) == Correction()


def test_predictions_of_the_wrong_order_are_all_the_mean() -> None:
    told = np.linspace(-1, 1, 400).astype(np.float32)
    correction = learned_correction(told, -told, np.ones(400, np.float32))
    assert correction.of(told).tolist() == pytest.approx([0.0] * 400, abs=1e-6)


def test_a_source_that_holds_winners_alone_tells_no_rate(
    transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    winners = [
        replace(
            item,
            transition_id=f"winners/{number}",
            source="winners",
            siblings=f"winners/{number}",
            outcome=Outcome.CORRECT,
            reward=3.0,
        )
        for number, item in enumerate(transitions[:60])
    ]
    before, after = build(transitions), build([*transitions, *winners])
    assert [item.effect for item in before.directions] == [item.effect for item in after.directions]
    assert dict(before.expectation.terms) == pytest.approx(dict(after.expectation.terms), abs=1e-9)
    mixed = [replace(item, reward=-0.5) if number < 5 else item for number, item in enumerate(winners)]
    assert build([*transitions, *mixed]).directions[0].effect != before.directions[0].effect


def test_what_the_state_predicts_is_learnt_within_sources(
    transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    """A source whose steps gain more whatever their state, all on one device, teaches nothing of that device."""

    def moved(item: Transition) -> Transition:
        state = replace(item.state, arch="sm_90" if item.source == "log_a" else "sm_80")
        more = 0.0 if item.reward is None or item.source == "log_b" else 2.0
        return replace(item, state=state, reward=None if item.reward is None else item.reward + more)

    terms = dict(build([moved(item) for item in transitions]).expectation.terms)
    assert abs(terms.get("arch=sm_90", 0.0) - terms.get("arch=sm_80", 0.0)) < 0.1
