import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.errors import BadInputError
from artifacts.memory.attention import ATTENDED
from artifacts.memory.htg import Memory
from artifacts.memory.tables import transition_rows
from artifacts.state import State
from optimizer.arms import make_arm
from optimizer.selection import SelectionSettings
from optimizer.simulator.arena import Arena, Contender
from optimizer.simulator.comparison import Comparison, SimulationSettings, ahead_at_the_end, compare, results_of
from optimizer.simulator.episode import play
from optimizer.simulator.suite import play_suite, suites_of
from optimizer.simulator.world import World, WorldSettings, advanced, reachable, split

MakeMemory = Callable[..., Memory]
ENDLESS = WorldSettings(capped=False)
ATTENTIVE = SelectionSettings(explore=0.0, attention=ATTENDED)
SMALL = SimulationSettings(arms=("feedback", "htam"), runs=2, selection=ATTENTIVE, world=ENDLESS)


def difference(found: Comparison, arm: str) -> tuple[float, float, float]:
    interval = next(result.difference for result in found.arms if result.arm == arm)
    assert interval is not None
    return interval.low, interval.value, interval.high


def test_a_direction_that_matters_puts_the_arm_that_knows_it_ahead(memory_with: MakeMemory) -> None:
    low, value, _ = difference(compare(memory_with(1.0), SMALL), "htam")
    assert low > 0.2
    assert value > 0.5


def test_directions_that_do_not_matter_put_nobody_ahead(memory_with: MakeMemory) -> None:
    low, _, high = difference(compare(memory_with(0.0), SMALL), "htam")
    assert low < 0.1
    assert high > -0.1


def test_equal_seeds_give_equal_results(memory_with: MakeMemory) -> None:
    memory = memory_with(0.5, count=200)
    quick = replace(SMALL, runs=1, steps=3)
    assert compare(memory, quick) == compare(memory, quick)
    assert compare(memory, quick) != compare(memory, replace(quick, seed=1))


def test_every_arm_meets_the_same_start_and_luck(memory_with: MakeMemory) -> None:
    world = World(memory_with(0.5), WorldSettings())
    arm = make_arm("feedback", None, SelectionSettings())
    assert play(world, "test/1/03", arm, 6, "s") == play(world, "test/1/03", arm, 6, "s")


def test_no_arm_sees_the_task_that_it_works_on(memory_with: MakeMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, set[str]]] = []

    def spy(world: World, task_id: str, arm, steps: int, seed: str):  # type: ignore[no-untyped-def]
        if arm.memory is not None:
            seen.append((task_id, {row.task.task_id for row in arm.memory.transitions()}))
        return play(world, task_id, arm, steps, seed)

    monkeypatch.setattr("optimizer.simulator.arena.play", spy)
    compare(memory_with(0.5), replace(SMALL, runs=1))
    assert len(seen) == 20
    assert all(task_id not in known for task_id, known in seen)


def test_progress_never_falls_and_each_step_is_counted(memory_with: MakeMemory) -> None:
    found = compare(memory_with(0.5), replace(SMALL, runs=2, steps=5))
    for result in found.arms:
        assert list(result.by_step) == sorted(result.by_step)
        assert len(result.by_step) == 5
    assert (found.tasks, found.episodes) == (20, 20 * 2 * 2)


@pytest.mark.parametrize("arm", ["htam", "flat", "no-local", "no-prefix", "uniform", "frozen", "feedback", "best-of-n"])
def test_every_arm_can_be_simulated(memory_with: MakeMemory, arm: str) -> None:
    found = compare(memory_with(0.5, count=200), SimulationSettings(arms=(arm,), runs=1, steps=3))
    assert found.arms[0].progress.low <= found.arms[0].progress.value <= found.arms[0].progress.high


def test_without_records_of_a_direction_the_draw_is_as_if_it_had_not_been_followed(memory_with: MakeMemory) -> None:
    world = World(memory_with(0.5), WorldSettings())
    state = world.starts("test/1/03")[0].state
    drawn = [world.draw(state, "test/1/03", "unheard-of", (0.0, luck / 10)) for luck in range(10)]
    assert not any(one.followed for one in drawn)


def test_a_direction_with_many_records_is_mostly_followed(memory_with: MakeMemory) -> None:
    world = World(memory_with(0.5, count=2000), WorldSettings())
    state = world.starts("test/1/03")[0].state
    drawn = [world.draw(state, "test/1/03", "fusion", (luck / 50, luck / 50)) for luck in range(50)]
    assert sum(one.followed for one in drawn) > 35


@functools.cache
def _world(memory_with: MakeMemory) -> World:
    return World(memory_with(0.5, count=100), WorldSettings())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_any_luck_draws_something(memory_with: MakeMemory, first: float, second: float) -> None:
    world = _world(memory_with)
    state = State(family="scan", arch="cpu", language=Language.CPP)
    drawn = world.draw(state, "nowhere", "fusion", (first, second))
    after = advanced(state, drawn, "fusion")
    assert after.step == 1
    assert after.log2_progress >= 0


def test_nobody_passes_the_speed_of_light() -> None:
    near = State(family="scan", arch="cpu", language=Language.CPP, fraction_of_bound=0.5)
    assert reachable(near, 3.0) == 1.0
    assert reachable(replace(near, fraction_of_bound=None), 3.0) == 3.0
    assert reachable(replace(near, fraction_of_bound=1.0), 3.0) == 0.0


def test_nobody_gets_further_than_the_best_that_was_recorded(memory_with: MakeMemory) -> None:
    memory = memory_with(0.5)
    capped, endless = World(memory, WorldSettings()), World(memory, ENDLESS)
    best = {
        task: max(row.reward or 0 for row in memory.transitions() if row.task.task_id == task)
        for task in capped.tasks()
    }
    reached = {task: play(capped, task, make_arm("feedback", None, SelectionSettings()), 30, "0") for task in best}
    beyond = [play(endless, task, make_arm("feedback", None, SelectionSettings()), 30, "0") for task in best]
    assert all(episode.progress[-1] <= best[task] + 1e-5 for task, episode in reached.items())
    assert min(episode.progress[-1] for episode in beyond) > max(best.values())


def test_an_arm_that_gets_there_sooner_is_ahead_over_all_steps(memory_with: MakeMemory) -> None:
    found = compare(memory_with(1.0), replace(SMALL, world=WorldSettings(), steps=12))
    sooner = found.arms[1].sooner
    assert sooner is not None
    assert sooner.low > 0


@pytest.mark.parametrize("moving", [False, True])
def test_a_suite_uses_the_same_steps_whether_they_move_or_not(memory_with: MakeMemory, moving: bool) -> None:
    world = World(memory_with(0.5), ENDLESS)
    arm = make_arm("feedback", None, SelectionSettings())
    played = play_suite(world, world.tasks(), arm, 6, "0", moving=moving)
    steps = [len(episode.progress) for episode in played.values()]
    assert sum(steps) == 6 * len(played)
    assert (len(set(steps)) > 1) == moving


def test_without_moving_a_suite_is_its_tasks_alone(memory_with: MakeMemory) -> None:
    world = World(memory_with(0.5), ENDLESS)
    arm = make_arm("feedback", None, SelectionSettings())
    played = play_suite(world, world.tasks(), arm, 4, "0", moving=False)
    assert played == {task: play(world, task, arm, 4, "0") for task in world.tasks()}


def test_steps_that_move_are_compared_by_what_was_reached(memory_with: MakeMemory) -> None:
    arena = Arena(memory_with(0.5), folds=5, world=ENDLESS)
    contender = Contender(label="feedback", arm="feedback")
    luck = {"steps": 4, "runs": 2, "seed": 0, "tasks": frozenset(arena.tasks)}
    even, moved = (arena.suites(contender, **luck, moving=moving) for moving in (False, True))  # type: ignore[arg-type]
    assert ahead_at_the_end(even, even).value == 0.0
    assert set(even) == set(moved) == set(arena.tasks)


@given(st.lists(st.text(max_size=3)), st.integers(2, 10))
def test_suites_hold_every_task_once(tasks: list[str], size: int) -> None:
    found = [name for suite in suites_of(tasks, size, 0) for name in suite]
    assert sorted(found) == sorted(tasks)


@given(st.lists(st.text(max_size=3)), st.integers(2, 10))
def test_folds_hold_every_task_once(tasks: list[str], folds: int) -> None:
    groups = split(tasks, folds)
    assert sorted(name for group in groups for name in group) == sorted(set(tasks))


def test_an_operator_that_two_suites_share_is_forgotten_in_both(memory_with: MakeMemory) -> None:
    memory = memory_with(0.5)
    rows = [
        replace(row, task=replace(row.task, task_id="other/-/01")) if number % 40 == 1 else row
        for number, row in enumerate(memory.transitions())  # every second one of test/1/01
    ]
    shared = replace(memory, table=transition_rows(rows))
    assert len(shared.same_operators(["other/-/01"])) == 2
    arena = Arena(shared, folds=5, world=ENDLESS)
    assert [known.same_operators(world.tasks()) for world, known in arena.grounds] == [()] * 5


def test_too_few_tasks_are_one_clear_error(memory_with: MakeMemory) -> None:
    with pytest.raises(BadInputError, match="0 tasks with 5 or more"):
        compare(memory_with(0.5, count=20), SMALL)


@pytest.mark.parametrize("wrong", [{"arms": ()}, {"arms": ("htam", "htam")}, {"steps": 0}, {"folds": 1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"count|named once"):
        replace(SMALL, **wrong)  # type: ignore[arg-type]


def test_an_arm_that_knows_the_world_is_ahead_of_all(memory_with: MakeMemory) -> None:
    arena = Arena(memory_with(1.0), folds=5, world=WorldSettings())
    contender = Contender(label="htam", arm="htam", selection=SelectionSettings(explore=0.0))
    played = {
        "htam": dict(arena.play(contender, steps=4, runs=3, seed=0)),
        "oracle": dict(arena.ceiling(steps=4, runs=3, seed=0)),
    }
    _, oracle = results_of(played)
    assert oracle.difference is not None
    assert oracle.difference.value > -0.05
    assert oracle.directed == 1.0


def test_contenders_can_be_compared_on_some_of_the_tasks(memory_with: MakeMemory) -> None:
    arena = Arena(memory_with(1.0), folds=5, world=ENDLESS)
    half = frozenset(arena.tasks[::2])
    plain, hindered = ATTENTIVE, replace(ATTENTIVE, least_lead=1e6)
    contenders = [
        Contender(label="open", arm="htam", selection=plain),
        Contender(label="closed", arm="htam", selection=hindered),
    ]
    played = {one.label: dict(arena.play(one, steps=3, runs=2, seed=0, tasks=half)) for one in contenders}
    opened, closed = results_of(played)
    assert set(played["open"]) == half
    assert closed.directed == 0.0
    assert closed.difference is not None
    assert closed.difference.high < 0 < opened.directed
