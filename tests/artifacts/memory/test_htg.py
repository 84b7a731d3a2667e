from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.memory.effects import effects_by
from artifacts.memory.expectation import Expectation
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition


def test_an_excluded_task_leaves_no_trace(memory: Memory, transitions: list[Transition]) -> None:
    task = transitions[1].task.task_id
    kept = memory.filter(exclude_tasks=[task])
    gone = {item.transition_id for item in transitions if item.task.task_id == task}
    assert len(kept) == len(memory) - len(gone)
    for strategy in kept.strategies:
        named = {*strategy.evidence, *(item.transition_id for item in strategy.templates)}
        named |= {name for ids in strategy.risk_evidence for name in ids}
        assert not named & gone
        assert task not in strategy.template
    assert kept.expectation != memory.expectation


def test_expectations_and_effects_are_those_of_a_memory_that_never_saw_the_task(
    memory: Memory, transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    task = transitions[1].task.task_id
    never = build([item for item in transitions if item.task.task_id != task])
    kept = memory.filter(exclude_tasks=[task])
    assert [item.effect for item in kept.directions] == [item.effect for item in never.directions]
    assert np.allclose(kept.advantages, never.advantages, equal_nan=True)


def test_filters_by_source_family_and_trust(memory: Memory) -> None:
    assert set(memory.filter(exclude_sources=["log_a"]).columns.source.names) == {"log_b"}
    families = memory.filter(exclude_families=["softmax"]).columns.categories["family"].names
    assert "softmax" not in families
    assert memory.filter(min_trust=0.9).columns.weight.min() == 1.0


def test_an_unknown_source_is_refused_and_an_unknown_task_is_not(memory: Memory) -> None:
    with pytest.raises(BadInputError, match="log_c"):
        memory.filter(exclude_sources=["log_c"])
    assert len(memory.filter(exclude_tasks=["never/seen"])) == len(memory)


def test_a_device_discount_scales_trust(memory: Memory) -> None:
    discounted = memory.filter(device_discount={"sm_80": 0.5})
    arch = memory.columns.categories["arch"]
    factor = np.where(arch.values == arch.code("sm_80"), 0.5, 1.0)
    assert np.allclose(discounted.columns.weight, memory.columns.weight * factor)


def test_an_effect_is_a_mean_over_tasks_of_means_over_plans(
    transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    """Ten timings of one plan count as one, and ten plans of one task as one task."""
    said = {"a_softmax": {"x": [0.9] * 10, "y": [0.1]}, "b_softmax": {"x": [0.2]}, "c_softmax": {"x": [-0.4, 0.0]}}
    rows = [
        replace(
            transitions[1],
            transition_id=f"{task}/{plan}/{number}",
            task=replace(transitions[1].task, task_id=f"kernelbench/1/{task}"),
            plan=plan,
            outcome=Outcome.CORRECT,
            reward=reward,
            weight=1.0,
            flags=frozenset(),
        )
        for task, plans in said.items()
        for plan, rewards in plans.items()
        for number, reward in enumerate(rewards)
    ]
    (direction,) = build(rows).directions
    assert direction.effect.tasks == 3
    assert direction.effect.n == 14
    assert direction.effect.mean == pytest.approx((0.5 + 0.2 - 0.2) / 3, rel=0.1)
    assert direction.effect.low < 0.0 < direction.effect.high


def test_two_tasks_show_no_effect(transitions: list[Transition], build: Callable[..., Memory]) -> None:
    rows = [
        replace(item, task=replace(item.task, task_id=f"kernelbench/{number % 2}/1_softmax"), weight=1.0)
        for number, item in enumerate(transitions)
    ]
    for direction in build(rows).directions:
        assert not direction.effect.known
        assert (direction.effect.mean, direction.effect.sign) == (0.0, 0)


def test_one_enormous_step_moves_an_effect_by_no_more_than_sixteen_times(
    transitions: list[Transition], build: Callable[..., Memory]
) -> None:
    before = {item.direction_id: item.effect.mean for item in build(transitions).directions}
    first = next(number for number, item in enumerate(transitions) if item.reward is not None)
    enormous = [replace(item, reward=1000.0) if number == first else item for number, item in enumerate(transitions)]
    for direction in build(enormous).directions:
        assert abs(direction.effect.mean - before[direction.direction_id]) < 8.0 / direction.effect.tasks


def test_an_unseen_group_has_a_wide_effect(memory: Memory) -> None:
    groups = np.full(len(memory), -1, np.int64)
    (effect,) = effects_by(memory.columns, groups, 1)
    assert (effect.n, effect.tasks) == (0, 0)
    assert effect.high - effect.low > 3


def test_rows_of_a_strategy_are_all_its_transitions(memory: Memory, transitions: list[Transition]) -> None:
    found = {item.transition_id for item in memory.rows_of("fusion.0")}
    assert found == {item.transition_id for item in transitions if item.strategy_id == "fusion.0"}


def test_names_that_are_not_there_are_named(memory: Memory) -> None:
    with pytest.raises(BadInputError, match="'magic'"):
        memory.direction("magic")
    with pytest.raises(BadInputError, match="'magic'"):
        memory.strategy("magic")


def test_a_stored_expectation_is_used_and_forgotten_with_the_rows_it_came_from(memory: Memory) -> None:
    quarter = Expectation((("1", 0.25),))
    stored = replace(memory, manifest=replace(memory.manifest, expectation=quarter))
    assert stored.expectation == quarter
    assert stored.filter(exclude_sources=["log_a"]).expectation != quarter
