import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.memory.effects import refreshed
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Effect, Strategy, Transition
from artifacts.memory.tables import transition_rows
from artifacts.outcome import Outcome
from artifacts.state import State
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance
from builder.judge.bootstrap import improvement_interval, ratio_interval
from builder.judge.contrasts import contrast
from builder.judge.deals import DEALS, SHUFFLED, chance, deals, shuffled, together
from builder.judge.metrics import judge
from builder.judge.occasions import fold_of, occasions
from builder.judge.offpolicy import off_policy
from builder.judge.rankers import Attention, Estimate, StateOnly, baselines
from builder.judge.replay import figures, run, task_splits
from builder.judge.report import replay, replay_on
from builder.judge.selecting import Selected
from builder.judge.steps import auc

OPTIONS = ("a", "b", "c", "d")
NOTHING = Effect(mean=0.0, low=0.0, high=0.0, n=0, effective_n=0.0, failures=0)


def transition(task: int, parent: int, option: str, reward: float) -> Transition:
    identity = f"t{task}/{parent}/{option}"
    return Transition(
        transition_id=identity,
        source="made",
        trajectory_id=f"t{task}",
        task=TaskRef(task_id=f"s/{task}", suite="s", family="matmul"),
        device="cpu",
        llm="",
        state=State(family="matmul", arch="cpu", language=Language.CPP, runtime_us=10.0, step=parent),
        direction_id=option,
        strategy_id=f"{option}.0",
        plan="",
        outcome=Outcome.CORRECT,
        reward=reward,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"t{task}/{parent}",
        parent_sha256="p",
        child_sha256=identity,
        parent_us=10.0,
        child_us=5.0,
        error="",
        choice_probability=None,
        provenance=Provenance(format="x", importer_version=1, file="f", file_sha256="0"),
    )


def world(effects: dict[str, float], tasks: int = 30, noise: float = 0.3, seed: int = 0) -> Memory:
    """Parents differ widely in how much can be gained at all; options add ``effects`` to that."""
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        for parent in range(2):
            headroom = rng.gauss(0.0, 1.0)
            for option in rng.sample(OPTIONS, 3):
                rows.append(transition(task, parent, option, headroom + effects[option] + rng.gauss(0.0, noise)))
    directions = tuple(Direction(direction_id=o, name=o, description="", effect=NOTHING) for o in OPTIONS)
    strategies = tuple(
        Strategy(
            strategy_id=f"{o}.0",
            direction_id=o,
            name=o,
            intent="",
            when=(),
            recipe="",
            template="",
            effect=NOTHING,
            risks=(),
            evidence=(),
        )
        for o in OPTIONS
    )
    return refreshed(
        Memory(
            manifest=Manifest(name="made"), directions=directions, strategies=strategies, table=transition_rows(rows)
        )
    )


REAL = {"a": 0.6, "b": 0.2, "c": -0.2, "d": -0.6}
NONE = dict.fromkeys(OPTIONS, 0.0)


def test_replay_finds_an_effect_that_is_there() -> None:
    memory = world(REAL)
    judged = Attention()
    records = run(task_splits(memory, "direction"), (judged, *baselines(), *deals(judged)), "direction")
    found = {item.ranker: item for item in figures(together(records), "htam")}
    assert found["state only"].saving.low > 0.2
    assert found["frequency prior"].saving.low > 0.2
    assert found[SHUFFLED].saving.low > 0.2
    assert len(found) == 7
    assert chance(records, "htam") == 1 / (1 + DEALS)
    assert found["htam"].pairwise.value > 0.8
    assert found["htam"].saving.value == 0.0


def test_replay_finds_no_effect_where_there_is_none() -> None:
    savings = []
    for seed in range(4):
        judged = Attention()
        memory = world(NONE, seed=seed)
        found = figures(run(task_splits(memory, "direction"), (judged, StateOnly()), "direction"), "htam")
        savings.append(found[1].saving.value)
    assert abs(sum(savings) / len(savings)) < 0.2


def test_no_training_memory_holds_a_tested_task() -> None:
    for split in task_splits(world(REAL), "direction"):
        assert not {item.task for item in split.test} & set(split.train.columns.task.names)


def test_selection_looks_at_training_tasks_only_and_finds_what_ranks_well() -> None:
    memory = world(REAL, tasks=20)

    class Backwards:
        name = "backwards"

        def fit(self, memory: Memory, level: str) -> object:
            fitted = Attention().fit(memory, level)

            class Turned:
                def estimates(self, state: State) -> dict[str, Estimate]:
                    return {k: Estimate(-v.mean, v.spread) for k, v in fitted.estimates(state).items()}

            return Turned()

    chosen = Selected(among=(Backwards(), Attention())).choose(memory, "direction")  # type: ignore[arg-type]
    assert chosen.name == "htam"


def test_occasions_hold_the_mean_gain_of_each_option() -> None:
    memory = world(REAL, tasks=3)
    found = occasions(memory)
    assert len(found) == 6
    for item in found:
        rows = {memory.columns.direction.names[memory.columns.direction.values[r]]: memory.gains[r] for r in item.rows}
        assert item.gains == pytest.approx({name: float(value) for name, value in rows.items()})


def test_a_report_tells_the_whole_story() -> None:
    report = replay(world(REAL, tasks=15), across=False)
    assert [level.level for level in report.levels] == ["direction", "strategy"]
    for level in report.levels:
        assert level.calibration is not None
        assert level.calibration.steps == 90
        assert level.detectable is not None
        assert level.beaten["state only"]


def test_test_logs_are_scored_by_a_memory_that_forgot_their_tasks() -> None:
    memory, test = world(REAL), world(REAL, tasks=6, seed=9)
    report = replay_on(memory, test)
    assert report.levels[0].figures[0].regret.tasks == 6
    assert report.levels[0].figures[0].pairwise.value > 0.7


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(-3, 3), min_size=2))
def test_the_true_order_has_no_regret_and_the_reverse_has_most(gains: dict[str, float]) -> None:
    best = judge(gains, {name: Estimate(gain, 0.0) for name, gain in gains.items()})
    worst = judge(gains, {name: Estimate(-gain, 0.0) for name, gain in gains.items()})
    assert best.regret == pytest.approx(0.0)
    assert worst.regret == pytest.approx(max(gains.values()) - min(gains.values()))
    assert best.right == best.pairs
    assert worst.right == 0
    if best.ndcg is not None and worst.ndcg is not None:
        assert best.ndcg == pytest.approx(1.0)
        assert worst.ndcg <= best.ndcg + 1e-9


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(-3, 3), min_size=2))
def test_ties_are_as_good_as_chance(gains: dict[str, float]) -> None:
    found = judge(gains, {name: Estimate(1.0, 0.0) for name in gains})
    assert found.regret == pytest.approx(max(gains.values()) - sum(gains.values()) / len(gains))
    assert found.right == found.pairs / 2


def test_an_option_that_was_never_seen_ranks_last() -> None:
    assert judge({"a": 1.0, "new": 2.0}, {"a": Estimate(-5.0, 0.0)}).regret == 1.0


def test_intervals_hold_the_value_and_shrink_with_tasks() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for count in (20, 400):
        tasks = [f"t{i}" for i in range(count)]
        found = ratio_interval(tasks, list(rng.normal(1.0, 0.5, count)), [1.0] * count)
        assert found.low < found.value < found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


def test_a_steady_improvement_has_a_narrow_interval() -> None:
    tasks = [f"t{i}" for i in range(50)]
    theirs = [1.0 + 0.1 * i for i in range(50)]
    found = improvement_interval(tasks, [0.8 * value for value in theirs], theirs)
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2)


def test_nothing_to_judge_by_is_said_as_such() -> None:
    assert math.isnan(ratio_interval([], [], []).value)
    lonely = world(REAL, tasks=2)
    keep = np.zeros(len(lonely), np.bool_)
    keep[0] = True
    report = replay(lonely.kept(keep), across=False)
    assert report.levels[0].figures == ()


def test_auc_counts_ties_half() -> None:
    score = np.array([0.1, 0.5, 0.5, 0.9])
    assert auc(score, np.array([False, False, True, True])) == pytest.approx(0.875)
    assert math.isnan(auc(score, np.array([True] * 4)))


def test_shuffling_keeps_states_and_gains_and_moves_labels() -> None:
    memory = world(REAL)
    dealt = shuffled(memory, 1)
    assert np.array_equal(dealt.gains, memory.gains)
    assert dealt.advantages == pytest.approx(memory.advantages, abs=1e-6)
    assert sorted(dealt.columns.direction.values) == sorted(memory.columns.direction.values)
    assert not np.array_equal(dealt.columns.direction.values, memory.columns.direction.values)
    pairs = set(zip(*(dealt.table[name].to_pylist() for name in ("direction_id", "strategy_id")), strict=True))
    assert pairs == {(option, f"{option}.0") for option in OPTIONS}


def test_shuffling_knows_as_much_of_what_is_tried_late_as_the_memory_does() -> None:
    late = []
    for item in world(NONE, tasks=10).transitions():
        order = OPTIONS.index(item.direction_id)
        late.append(replace(item, state=replace(item.state, step=order)))
    memory = replace(world(NONE), table=transition_rows(late))
    first = {option: _shares_of_the_first_place(shuffled(memory, seed), option) for seed in (3,) for option in "ad"}
    assert first["d"] == 0.0
    assert first["a"] > 0.2


def _shares_of_the_first_place(memory: Memory, option: str) -> float:
    groups: dict[str, list[tuple[int, str]]] = {}
    for item in memory.transitions():
        groups.setdefault(item.siblings, []).append((item.state.step, item.direction_id))
    return sum(min(found)[1] == option for found in groups.values()) / len(groups)


def test_labels_that_mean_nothing_are_told_from_chance_as_seldom_as_they_should() -> None:
    found = []
    for seed in range(10):
        judged, memory = Attention(), world(NONE, tasks=12, seed=seed)
        found.append(chance(run(task_splits(memory, "direction"), (judged, *deals(judged)), "direction"), "htam"))
    assert sum(value is not None and value <= 0.1 for value in found) <= 4
    assert chance([], "htam") is None


@pytest.mark.parametrize("kept", [False, True])
def test_a_contrast_finds_the_effects_of_options_and_nothing_where_there_are_none(kept: bool) -> None:
    real, none = (contrast(world(effects), "direction", kept=kept) for effects in (REAL, NONE))
    assert real is not None
    assert none is not None
    assert real.rows == 180
    assert real.parents == 60
    assert real.probability < 0.01 < 0.05 < none.probability
    assert real.explained > 2 * real.by_chance
    assert none.explained == pytest.approx(none.by_chance, abs=0.05)


def test_the_effect_that_a_contrast_could_find_shrinks_with_more_parents() -> None:
    few, many = (contrast(world(NONE, tasks=tasks), "direction", kept=False) for tasks in (10, 80))
    assert few is not None
    assert many is not None
    assert many.detectable < few.detectable
    assert 0 < many.worth < few.worth


def test_there_is_no_contrast_where_every_parent_saw_one_option() -> None:
    memory = world(REAL, tasks=4)
    assert contrast(memory.kept(memory.columns.direction.values == 0), "direction", kept=False) is None


def test_a_search_that_keeps_its_best_does_not_regret_a_failure_more_than_standing_still() -> None:
    found = judge({"a": -1.0, "b": 0.0, "c": 0.5}, {"a": Estimate(1.0, 0.0)})
    assert found.regret == 1.5
    assert found.kept == 0.5
    assert judge({"a": -1.0, "b": -0.2}, {"a": Estimate(1.0, 0.0)}).kept == 0.0


@given(st.text(max_size=8), st.integers(2, 9))
def test_a_task_is_always_in_the_same_fold(task: str, folds: int) -> None:
    assert 0 <= fold_of(task, folds) < folds
    assert fold_of(task, folds) == fold_of(task, folds)


def test_failures_count_as_lost_steps_in_an_occasion() -> None:
    memory = world(REAL, tasks=1)
    first, *others = memory.transitions()
    failed = replace(first, outcome=Outcome.WRONG_RESULT, reward=None, child_us=None, error="wrong")
    found = occasions(replace(memory, table=transition_rows([failed, *others])))
    assert found[0].gains[failed.direction_id] == memory.gain.floor


def test_off_policy_estimates_find_what_a_better_choice_would_have_gained() -> None:
    rng = random.Random(5)
    logged = []
    for item in world(NONE, tasks=60, noise=0.0).transitions():
        option = rng.choice(OPTIONS)
        logged.append(
            replace(
                item,
                direction_id=option,
                strategy_id=f"{option}.0",
                siblings=item.transition_id,
                reward=REAL[option] + rng.gauss(0.0, 0.1),
                choice_probability=0.25,
            )
        )
    memory = refreshed(replace(world(REAL), table=transition_rows(logged)))
    found = off_policy(memory, Attention(), "direction", 5)
    assert found is not None
    assert found.logged.value == pytest.approx(0.0, abs=0.15)
    for estimate in (found.inverse, found.robust):
        assert estimate.value == pytest.approx(REAL["a"], abs=0.15)
        assert estimate.low > found.logged.high


def test_without_choice_probabilities_nothing_is_estimated() -> None:
    assert off_policy(world(REAL, tasks=4), Attention(), "direction", 5) is None
