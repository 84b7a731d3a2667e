"""What is known of the device at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.trajectory import State
from optimizer.arms.shuffled import shuffled
from optimizer.prompting.device_experience import EXAMPLES, LONGEST, DeviceExperience, evidence
from optimizer.prompting.strategies import StrategyTexts

HERE = {"arch": "sm_90", "language": Language.CUDA, "family": "softmax"}


@pytest.fixture
def state(softmax_state: State) -> State:
    return replace(softmax_state, **HERE)


def step(memory: Memory, number: int, gain: float | None, plan: str, **change: object) -> Transition:
    """A step on operator ``number`` of the device at hand."""
    known = next(memory.transitions())
    fields = {name: change.pop(name) for name in ("arch", "language", "family") if name in change}
    return replace(
        known,
        transition_id=f"here/{number:04d}",
        task=replace(known.task, task_id=f"suite/1/operator_{number}"),
        state=replace(known.state, **{**HERE, **fields}),
        plan=plan,
        outcome=Outcome.CORRECT if gain is not None else Outcome.WRONG_RESULT,
        reward=gain,
        siblings=f"here/{number}",
        parent_sha256=f"{number:064d}",
        child_sha256=f"{number + 100:064d}",
        parent_us=100.0,
        **{"error": "", "strategy_id": "tiling.0", "direction_id": "tiling", **change},
    )


def known_here(memory: Memory, steps: Iterable[Transition]) -> DeviceExperience:
    """What a memory with only ``steps`` says of the device at hand."""
    known = refreshed(replace(memory, table=transition_rows(list(steps))))
    return DeviceExperience(known, StrategyTexts(known, Language.CUDA), "sm_90", "cuda")


def text_of(known: DeviceExperience, state: State) -> str:
    found = evidence(known, state)
    return "" if found is None else found.text


def test_what_surely_gained_on_several_operators_gains(memory: Memory, state: State) -> None:
    found = known_here(memory, [step(memory, number, 0.5, "tile it") for number in range(4)])
    (record,) = found.gaining(state)
    assert (record.name, record.effect.n, record.effect.tasks, record.effect.failures) == ("tiling 0", 4, 4, 0)
    assert record.effect.mean == pytest.approx(0.5, rel=0.05)
    assert found.ineffective(state) == ()


@pytest.mark.parametrize("steps", [2, 6])
def test_two_operators_are_no_record(steps: int, memory: Memory, state: State) -> None:
    found = known_here(memory, [step(memory, number % 2, 0.5, "tile it") for number in range(steps)])
    assert found.gaining(state) == ()


def test_what_was_tried_often_without_gain_is_ineffective(memory: Memory, state: State) -> None:
    found = known_here(memory, [step(memory, number, (-0.02, 0.02)[number % 2], "tile it") for number in range(6)])
    assert [record.name for record in found.ineffective(state)] == ["tiling 0"]
    assert found.gaining(state) == ()


def test_an_operator_counts_once_however_often_it_was_tried(memory: Memory, state: State) -> None:
    often = [step(memory, 0, 1.0, "tile it") for _ in range(12)]
    rest = [step(memory, number, 0.6, "tile it") for number in range(1, 4)]
    (record,) = known_here(memory, [*often, *rest]).gaining(state)
    assert record.effect.mean == pytest.approx((1.0 + 3 * 0.6) / 4, rel=0.05)


@pytest.mark.parametrize("other", [{"arch": "sm_80"}, {"language": Language.TRITON}, {"parent_us": None}])
def test_other_devices_and_languages_say_nothing(other: dict[str, object], memory: Memory, state: State) -> None:
    elsewhere = [replace(step(memory, number, 0.5, "tile it")) for number in range(4)]
    moved = [
        replace(
            one,
            state=replace(one.state, **{name: other[name] for name in ("arch", "language") if name in other}),
            parent_us=other.get("parent_us", one.parent_us),
        )
        for one in elsewhere
    ]
    found = known_here(memory, moved)
    assert text_of(found, state) == ""


def test_steps_of_the_own_family_come_first_and_one_idea_once(memory: Memory, state: State) -> None:
    steps = [
        step(memory, 1, 0.6, "move the products to tensor cores in split parts", family="matmul"),
        step(memory, 2, 0.6, "move all products to tensor cores in split parts", family="convolution"),
        step(memory, 3, 0.5, "keep whole rows resident on one multiprocessor", family="fusion"),
    ]
    found = known_here(memory, steps).examples(replace(state, family="fusion"))
    assert [example.operator for example in found] == ["operator_3", "operator_1"]


def test_steps_on_products_are_no_examples_for_operators_without_any(memory: Memory, state: State) -> None:
    product = step(memory, 1, 2.0, "split products for matrix units", family="matmul")
    rows = step(memory, 2, 0.3, "hold rows in registers once", family="reduction")
    known = known_here(memory, [product, rows])
    assert [example.operator for example in known.examples(state)] == ["operator_2"]
    assert len(known.examples(replace(state, family="fusion"))) == 2


def test_a_large_gain_counts_no_more_than_what_is_left(memory: Memory, state: State) -> None:
    steps = [
        step(memory, 1, 2.9, "split products for matrix units", family="matmul"),
        step(memory, 2, 0.3, "hold rows in registers once", family="fusion"),
    ]
    known, chain = known_here(memory, steps), replace(state, family="fusion")
    far, near = replace(chain, fraction_of_bound=0.05), replace(chain, fraction_of_bound=0.85)
    assert [example.operator for example in known.examples(far)] == ["operator_1", "operator_2"]
    assert [example.operator for example in known.examples(near)] == ["operator_2", "operator_1"]


def test_there_are_few_examples_and_none_that_gained_little_or_beyond_belief(memory: Memory, state: State) -> None:
    words = ["alpha beta", "gamma delta", "epsilon zeta", "theta iota", "kappa lambda"]
    steps = [step(memory, number, 0.5, text) for number, text in enumerate(words)]
    dull = [step(memory, 10, 0.01, "noise only"), step(memory, 11, 5.0, "miracle cure")]
    found = known_here(memory, [*steps, *dull]).examples(state)
    assert len(found) == EXAMPLES
    assert {example.gain for example in found} == {0.5}


def test_precision_is_not_given_up_where_the_task_is_wide(memory: Memory, state: State) -> None:
    narrow = replace(memory.strategies[0], strategy_id="precision.half_precision", direction_id="tiling")
    known = replace(memory, strategies=(narrow, *memory.strategies[1:]))
    steps = [step(memory, n, 0.5, "store halves", strategy_id="precision.half_precision") for n in range(4)]
    found = known_here(known, steps)
    assert text_of(found, replace(state, dtype="float32")) == ""
    assert "store halves" in text_of(found, replace(state, dtype="float16"))


def test_a_failure_is_told_with_its_cure_where_its_strategy_is_offered(memory: Memory, state: State) -> None:
    gained = step(memory, 1, 0.5, "sum on matrix units")
    failed = step(memory, 2, None, "sum everything in one accumulator", error="off by 2e-5")
    cure = replace(
        step(memory, 2, 0.1, "sum short pieces and add them with rounding"), parent_sha256=failed.child_sha256
    )
    text = text_of(known_here(memory, [gained, failed, replace(cure, transition_id="here/cure")]), state)
    assert "wrong_result on operator_2: sum everything in one accumulator The cure: sum short pieces" in text
    unrelated = replace(failed, strategy_id="fusion.0", direction_id="fusion")
    assert "cure" not in text_of(
        known_here(memory, [gained, unrelated, replace(cure, transition_id="here/cure")]), state
    )


def test_a_failure_without_a_cure_is_not_told(memory: Memory, state: State) -> None:
    failed = step(memory, 2, None, "sum everything in one accumulator", error="off")
    assert "accumulator" not in text_of(known_here(memory, [step(memory, 1, 0.5, "tile"), failed]), state)


def test_long_plans_are_cut(memory: Memory, state: State) -> None:
    text = text_of(known_here(memory, [step(memory, 1, 0.5, "Load wide. " * 200)]), state)
    assert len(text) < LONGEST + 100


def test_the_shuffled_control_tells_plans_with_the_gains_of_others(memory: Memory, state: State) -> None:
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
    steps = [step(memory, n, 0.2 + 0.1 * n, f"{name} {name}{name}") for n, name in enumerate(names)]
    known = refreshed(replace(memory, table=transition_rows(steps)))
    mixed = {tuple(shuffled(known, seed).table["plan"].to_pylist()) for seed in range(5)}
    assert len(mixed) > 1
    assert all(sorted(plans) == sorted(known.table["plan"].to_pylist()) for plans in mixed)
