import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.errors import HtamError
from artifacts.measurement import Outcome
from artifacts.memory.expectation import FLOOR
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.manifest import Manifest, RankingQuality
from artifacts.memory.records import Direction, Effect, Strategy, Transition
from artifacts.memory.store import MemoryStore
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State
from builder.build import best_of, publish
from builder.validate.calibration import Predictions, calibration, predictions
from builder.validate.decision_points import DecisionPoint, decision_points, operator_folds
from builder.validate.gate import gate
from builder.validate.off_policy import off_policy
from builder.validate.permutations import PERMUTATIONS, PERMUTED, chance, permuted, run_permuted
from builder.validate.rankers import HTAM, NO_DIRECTION, PAPER, RANKERS
from builder.validate.replay import figures, held_out, level_splits, record, run
from builder.validate.report import replay, replay_on

OPTIONS = ("a", "b", "c", "d")
SHIPPED = {HTAM: RANKERS[HTAM]}
BASELINES = {name: ranker for name, ranker in RANKERS.items() if name not in (HTAM, PAPER)}
NOTHING = Effect(mean=0.0, low=0.0, high=0.0, n=0, tasks=0, failures=0)


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
    splits = level_splits(memory)["direction"]
    ours, others = (run(splits, chosen, "direction") for chosen in (SHIPPED, BASELINES))
    controls = run_permuted(splits, "direction")
    found = {item.ranker: item for item in figures([*ours, *others, *sum(controls, ())], HTAM)}
    assert found["no direction"].margin.low > 0.2
    assert found["popularity"].margin.low > 0.2
    assert found[PERMUTED].margin.low > 0.2
    assert len(found) == 5
    assert {item.decision_points for item in found.values()} == {60}
    assert chance(ours, controls) == 1 / (1 + PERMUTATIONS)
    assert found["htam"].pairwise.value > 0.8
    assert found["htam"].margin.value == 0.0


def test_replay_finds_no_effect_where_there_is_none() -> None:
    margins, shown = [], {name: RANKERS[name] for name in (HTAM, NO_DIRECTION)}
    for seed in range(4):
        memory = world(NONE, seed=seed)
        found = figures(run(level_splits(memory)["direction"], shown, "direction"), HTAM)
        margins.append(found[1].margin.value)
    assert abs(sum(margins) / len(margins)) < 0.2


def test_no_training_memory_holds_a_tested_task() -> None:
    for split in level_splits(world(REAL))["direction"]:
        assert not {item.task for item in split.test} & set(split.train.columns.task.names)


def test_no_training_memory_holds_a_tested_family_where_families_are_left_out() -> None:
    memory = world(REAL, tasks=8)
    rows = [
        replace(item, state=replace(item.state, family=family), task=replace(item.task, family=family))
        for item in memory.transitions()
        for family in [("matmul", "softmax", "scan")[int(item.task.task_id[-1]) % 3]]
    ]
    memory = replace(memory, table=transition_rows(rows))
    found = list(held_out(memory, decision_points(memory), families=True))
    assert found
    for split in found:
        families = split.train.columns.categories["family"].names
        assert not {item.state.family for item in split.test} & set(families)


def test_decision_points_hold_the_mean_gain_of_each_option() -> None:
    memory = world(REAL, tasks=3)
    found = decision_points(memory)
    assert len(found) == 6
    for item in found:
        rows = {memory.columns.direction.names[memory.columns.direction.values[r]]: memory.gains[r] for r in item.rows}
        assert item.gains == pytest.approx({name: float(value) for name, value in rows.items()})


def test_a_report_tells_the_whole_story() -> None:
    report = replay(world(REAL, tasks=15))
    assert [level.level for level in report.levels] == ["direction", "strategy"]
    for level in report.levels:
        assert level.calibration is not None
        assert level.calibration.steps == 90
        assert level.detectable is not None
        assert "no direction" in level.beaten


def test_test_logs_are_scored_by_a_memory_that_forgot_their_tasks() -> None:
    memory, test = world(REAL), world(REAL, tasks=6, seed=9)
    report = replay_on(memory, test)
    assert report.levels[0].figures[0].regret.tasks == 6
    assert report.levels[0].figures[0].pairwise.value > 0.7


def point(gains: dict[str, float]) -> DecisionPoint:
    state = State(family="matmul", arch="cpu", language=Language.CPP)
    return DecisionPoint(task="t", state=state, gains=gains, rows=(0,))


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(-3, 3), min_size=2))
def test_the_true_order_has_no_regret_and_the_reverse_has_most(gains: dict[str, float]) -> None:
    best = record("best", point(gains), gains)
    worst = record("worst", point(gains), {name: -gain for name, gain in gains.items()})
    assert best.regret == pytest.approx(0.0)
    assert worst.regret == pytest.approx(max(gains.values()) - min(gains.values()))
    assert best.pairwise in (1.0, None)
    assert worst.pairwise in (0.0, None)
    if best.ndcg is not None and worst.ndcg is not None:
        assert best.ndcg == pytest.approx(1.0)
        assert worst.ndcg <= best.ndcg + 1e-9


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(-3, 3), min_size=2))
def test_ties_are_as_good_as_chance(gains: dict[str, float]) -> None:
    found = record("tied", point(gains), dict.fromkeys(gains, 1.0))
    assert found.regret == pytest.approx(max(gains.values()) - sum(gains.values()) / len(gains))
    assert found.pairwise in (0.5, None)


def test_an_option_that_was_never_seen_ranks_last() -> None:
    assert record("known", point({"a": 1.0, "new": 2.0}), {"a": -5.0}).regret == 1.0


def test_nothing_to_validate_on_is_said_as_such() -> None:
    lonely = world(REAL, tasks=2)
    keep = np.zeros(len(lonely), np.bool_)
    keep[0] = True
    report = replay(lonely.kept(keep))
    assert report.levels[0].figures == ()


def test_permuting_keeps_states_and_gains_and_moves_labels() -> None:
    memory = world(REAL)
    labels = permuted(memory, 1)
    assert np.array_equal(labels.gains, memory.gains)
    assert labels.advantages == pytest.approx(memory.advantages, abs=1e-6)
    assert sorted(labels.columns.direction.values) == sorted(memory.columns.direction.values)
    assert not np.array_equal(labels.columns.direction.values, memory.columns.direction.values)
    direction, strategy = labels.columns.direction, labels.columns.strategy
    names = [direction.names[code] for code in direction.values], [strategy.names[code] for code in strategy.values]
    assert set(zip(*names, strict=True)) == {(option, f"{option}.0") for option in OPTIONS}


def test_permuting_knows_as_much_of_what_is_tried_late_as_the_memory_does() -> None:
    late = []
    for item in world(NONE, tasks=10).transitions():
        order = OPTIONS.index(item.direction_id)
        late.append(replace(item, state=replace(item.state, step=order)))
    memory = replace(world(NONE), table=transition_rows(late))
    first = {option: _shares_of_the_first_place(permuted(memory, seed), option) for seed in (3,) for option in "ad"}
    assert first["d"] == 0.0
    assert first["a"] > 0.2


def _shares_of_the_first_place(memory: Memory, option: str) -> float:
    groups: dict[str, list[tuple[int, str]]] = {}
    direction = memory.columns.direction
    for item, code in zip(memory.transitions(), direction.values, strict=True):
        groups.setdefault(item.siblings, []).append((item.state.step, direction.names[code]))
    return sum(min(found)[1] == option for found in groups.values()) / len(groups)


def test_labels_that_mean_nothing_are_told_from_chance_as_seldom_as_they_should() -> None:
    found = []
    for seed in range(10):
        splits = level_splits(world(NONE, tasks=12, seed=seed))["direction"]
        found.append(chance(run(splits, SHIPPED, "direction"), run_permuted(splits, "direction")))
    assert sum(value <= 0.1 for value in found) <= 4


def test_labels_that_only_tell_the_place_are_told_from_chance_as_seldom_as_they_should() -> None:
    """A log that stops at its first gain: what is tried late gains more, whatever it is called."""
    found = []
    for seed in range(10):
        placed: dict[str, list[Transition]] = {}
        for item in world(NONE, tasks=12, seed=seed).transitions():
            placed.setdefault(item.siblings, []).append(item)
        rng = random.Random(seed)
        late = [
            replace(item, reward=0.5 * place + rng.gauss(0.0, 0.1), state=replace(item.state, step=place))
            for siblings in placed.values()
            for place, item in enumerate(sorted(siblings, key=lambda one: one.direction_id))
        ]
        memory = refreshed(replace(world(NONE), table=transition_rows(late)))
        splits = level_splits(memory)["direction"]
        found.append(chance(run(splits, SHIPPED, "direction"), run_permuted(splits, "direction")))
    assert sum(value <= 0.1 for value in found) <= 4


def test_no_operator_is_in_two_folds_however_its_tasks_are_called() -> None:
    tasks = ["cpu/-/rms_norm", "cuda/-/rms_norm", "kernelbench/1/36_rmsnorm", "cpu/-/softmax", "s/1", "s/2"]
    found = operator_folds(tasks, 3)
    assert sorted(task for fold in found for task in fold) == sorted(tasks)
    assert len(found) == 3
    assert sum("cpu/-/rms_norm" in fold for fold in found) == 1
    assert any({*tasks[:3]} <= fold for fold in found)


def test_predictions_of_steps_are_calibrated_where_the_state_tells_the_gain() -> None:
    found = calibration(predictions(world(REAL), "direction"))
    assert found.steps == 180
    assert sum(item.steps for item in found.bins) == 180
    assert found.bias.low <= 0 <= found.bias.high
    assert found.slope.low > 0
    assert found.auc > 0.55


def test_failures_count_as_lost_steps_at_a_decision_point() -> None:
    memory = world(REAL, tasks=1)
    first, *others = memory.transitions()
    failed = replace(first, outcome=Outcome.WRONG_RESULT, reward=None, child_us=None, error="wrong")
    found = decision_points(replace(memory, table=transition_rows([failed, *others])))
    assert found[0].gains[failed.direction_id] == FLOOR


def logged(probability: float | None, tasks: int = 60) -> Memory:
    """A log that draws its directions at random, and says that each had ``probability``."""
    rng, rows = random.Random(5), []
    for item in world(NONE, tasks=tasks, noise=0.0).transitions():
        option = rng.choice(OPTIONS)
        changed = replace(item, direction_id=option, strategy_id=f"{option}.0", siblings=item.transition_id)
        rows.append(replace(changed, reward=REAL[option] + rng.gauss(0.0, 0.1), choice_probability=probability))
    return refreshed(replace(world(REAL), table=transition_rows(rows)))


def test_off_policy_estimates_find_what_a_better_choice_would_have_gained() -> None:
    found = off_policy(logged(0.25))
    assert (found.logged, found.drawn) == (360, 360)
    assert found.estimates is not None
    assert found.estimates.logged.value == pytest.approx(0.0, abs=0.15)
    for estimate in (found.estimates.inverse, found.estimates.robust):
        assert estimate.value == pytest.approx(REAL["a"], abs=0.15)
        assert estimate.low > found.estimates.logged.high
    assert "360 steps drawn at random" in found.line


def test_choices_made_with_certainty_support_no_off_policy_estimate() -> None:
    found = off_policy(logged(1.0, tasks=12))
    assert (found.logged, found.drawn, found.estimates) == (72, 0, None)
    assert found.line.startswith("no off-policy estimate: of 72 steps with a logged probability 0 were drawn")


def test_a_difference_between_sources_is_no_prediction_within_one() -> None:
    rng = np.random.default_rng(0)
    level = np.repeat([1.0, -0.5], 200)
    found = calibration(
        Predictions(
            tasks=np.array([f"t{n % 20}" for n in range(400)]),
            sources=np.repeat(["winners", "search"], 200),
            predicted=level,
            observed=level + rng.normal(0, 0.3, 400),
            weight=np.ones(400),
        )
    )
    assert found.auc > 0.9
    assert found.auc_within == pytest.approx(0.5, abs=0.05)


def test_what_is_logged_is_the_probability_of_a_direction_so_strategies_have_no_estimate() -> None:
    memory = world(REAL, tasks=5)
    certain = [replace(item, choice_probability=0.25) for item in memory.transitions()]
    directions, strategies = replay(replace(memory, table=transition_rows(certain))).levels
    assert directions.off_policy is not None
    assert strategies.off_policy is None
    assert replay(memory).levels[0].off_policy is None


def degraded(memory: Memory, share: float, seed: int = 0) -> Memory:
    """``memory`` with the labels of a share of its rows exchanged at random."""
    rng, rows = random.Random(seed), list(memory.transitions())
    chosen = rng.sample(range(len(rows)), round(share * len(rows)))
    labels = [(rows[at].direction_id, rows[at].strategy_id) for at in chosen]
    rng.shuffle(labels)
    for at, (direction, strategy) in zip(chosen, labels, strict=True):
        rows[at] = replace(rows[at], direction_id=direction, strategy_id=strategy)
    return refreshed(replace(memory, table=transition_rows(rows)))


def grown(memory: Memory, more: Memory) -> Memory:
    """``memory`` with the tasks of ``more`` beside its own."""
    others = [
        replace(
            row,
            transition_id=f"more/{row.transition_id}",
            siblings=f"more/{row.siblings}",
            task=TaskRef(task_id=f"{row.task.task_id}more", suite="s", family="matmul"),
        )
        for row in more.transitions()
    ]
    return refreshed(replace(memory, table=transition_rows([*memory.transitions(), *others])))


def test_a_build_that_chooses_worse_at_the_same_choices_is_refused() -> None:
    memory = world(REAL)
    assert gate(memory, memory)
    with pytest.raises(HtamError, match=r"chooses directions worse than made@.* --force"):
        gate(memory, degraded(memory, 1.0))
    assert gate(degraded(memory, 1.0), memory)


def test_logs_with_harder_choices_hold_no_build_up() -> None:
    """The new choices are a coin's; the figures over all choices fall and those over the old ones do not."""
    memory = world(REAL)
    gate(memory, grown(memory, world(NONE, tasks=30, seed=5)))


def test_two_tasks_hold_nobody_up() -> None:
    memory = world(REAL, tasks=2)
    gate(memory, degraded(memory, 1.0))


def test_many_small_losses_are_refused_as_one_large_loss_is(tmp_path: Path) -> None:
    """Each build is a little worse than the one before it, and none surely so."""
    memory, store = world(REAL, tasks=12), MemoryStore(str(tmp_path / "store"))
    builds = [memory]
    for number in range(4):
        builds.append(degraded(builds[-1], 0.1, seed=number))
    publish(memory, store)
    refused = 0
    for before, build in itertools.pairwise(builds):
        gate(before, build)  # compared with its predecessor alone, each passes
        try:
            publish(build, store)
        except HtamError:
            refused += 1
    assert refused >= 2
    forced = publish(builds[-1], store, force=True)
    assert store.tagged("made", best_of("latest")) == store.tagged("made", "latest") == forced.version


def test_a_build_whose_ranking_became_chance_is_refused_and_one_that_always_was_is_not() -> None:
    def saying(chance: float) -> Memory:
        memory = world(REAL)
        quality = RankingQuality(
            level="direction", decision_points=60, regret=0.1, regret_no_direction=0.2, chance=chance
        )
        return replace(memory, manifest=replace(memory.manifest, quality=(quality,)))

    with pytest.raises(HtamError, match="no better than its own shuffles"):
        gate(saying(0.05), saying(0.4))
    assert gate(saying(0.3), saying(0.4))
    assert "good for fixes and kernels, not to rank" in saying(0.4).manifest.quality[0].line
