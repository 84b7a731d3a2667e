from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from artifacts.memory.conditions import holds, learn
from artifacts.memory.correction import Correction
from artifacts.memory.correction import learn as learn_correction
from artifacts.memory.expectation import Expectation, GainSettings, credited, cross_fitted, gains
from artifacts.memory.htg import Memory
from artifacts.memory.records import Condition, Transition


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
    found = gains(build(cases).columns, GainSettings(floor=-1.0, cap=4.0))
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
    gain = gains(columns, GainSettings())
    advantage, _ = credited(columns, gain, np.zeros(6, np.float32), GainSettings(siblings=1e-6))
    assert advantage.tolist() == pytest.approx([0.0, 0.3, -0.3, -0.3, 0.0, 0.3], abs=1e-3)


def test_a_lone_step_is_judged_by_the_state_and_weighs_less(
    build: Callable[..., Memory], transitions: list[Transition]
) -> None:
    measured = next(item for item in transitions if item.reward is not None)
    columns = build([replace(measured, reward=1.0)]).columns
    expected = np.array([0.4], np.float32)
    advantage, sure = credited(columns, gains(columns, GainSettings()), expected, GainSettings(alone=0.25))
    assert advantage.tolist() == pytest.approx([0.6])
    assert sure.tolist() == [0.25]


def test_the_expectation_of_a_task_does_not_depend_on_its_own_gains(memory: Memory) -> None:
    columns, target = memory.columns, memory.gains
    own = columns.task.values == columns.task.values[0]
    spoiled = np.where(own, target + 3, target).astype(np.float32)
    before = cross_fitted(columns, target, 10.0)
    after = cross_fitted(columns, spoiled, 10.0)
    assert np.allclose(before[own], after[own])
    assert not np.allclose(before[~own], after[~own])


def test_predicting_rows_and_states_agrees(memory: Memory, transitions: list[Transition]) -> None:
    ordered = sorted(transitions, key=lambda item: item.transition_id)
    rows = memory.expectation.predict(memory.columns)
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
        found += len(learn(memory.columns, noise, memory.columns.direction.values == 0))
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
    again = Expectation.stored(corrected.mapping())
    assert again.correction == corrected.correction
    assert np.allclose(again.predict(memory.columns), corrected.predict(memory.columns), atol=1e-4)


def test_a_line_through_bent_outcomes_is_bent_for_tasks_that_it_has_not_seen() -> None:
    rng = np.random.default_rng(5)
    truth = rng.uniform(-1, 1, 6_000).astype(np.float32)
    seen = (np.where(truth < 0, -0.5, truth) + rng.normal(0, 0.3, 6_000)).astype(np.float32)
    weight = np.ones(3_000, np.float32)
    correction = learn_correction(truth[:3_000], seen[:3_000], weight)
    assert np.all(np.diff(correction.observed) > 0)
    for low, high in ((-1, -0.5), (-0.5, -0.1), (0.1, 0.5), (0.5, 1)):
        part = (truth[3_000:] > low) & (truth[3_000:] < high)
        off = (correction.of(truth[3_000:]) - seen[3_000:])[part].mean()
        assert abs(off) < 0.1


def test_few_steps_correct_nothing() -> None:
    few = np.linspace(-1, 1, 40).astype(np.float32)
    assert learn_correction(few, -few, np.ones(40, np.float32)) == Correction()


def test_predictions_of_the_wrong_order_are_all_the_mean() -> None:
    told = np.linspace(-1, 1, 400).astype(np.float32)
    correction = learn_correction(told, -told, np.ones(400, np.float32))
    assert correction.of(told).tolist() == pytest.approx([0.0] * 400, abs=1e-6)
