"""What a repair and a doubtful timing are evidence of, and what not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, Step, Trajectory, TrustFlag
from builder.cluster.record import NOTHING_YET, Labels, StrategyNode
from builder.describe.raw_transitions import raw_transition_table, raw_transitions
from builder.describe.steps import describe
from builder.link.assemble import assemble

READ = Provenance(format="x", importer_version=1, file="f", file_sha256="0" * 64)


def step(name: str, parent: str | None, time_us: float | None, **changed: object) -> Step:
    return replace(
        Step(
            step_id=name,
            parent_id=parent,
            index=0,
            code=f"__global__ void kernel_{name}() {{}}",
            language=Language.CUDA,
            outcome=Outcome.COMPILE_ERROR if time_us is None else Outcome.CORRECT,
            provenance=READ,
            plan="stage tiles in shared memory",
            error="expected a ;" if time_us is None else "",
            runtime_us=time_us,
        ),
        **changed,
    )


def mined(task: int, *steps: Step) -> Trajectory:
    return Trajectory(
        trajectory_id=f"t{task}",
        source="log",
        task=TaskRef(task_id=f"s/1/{'abcd'[task]}_softmax", suite="s", family="softmax"),
        device="h100",
        llm="",
        steps=steps,
    )


def memory(*trajectories: Trajectory) -> Memory:
    """The memory of the trajectories, in which every plan names one strategy."""
    raw = raw_transition_table(raw for one in trajectories for raw in raw_transitions(one, describe(one)))
    rows = raw.num_rows
    strategy = StrategyNode(strategy_id="tiling", direction_id="d", name="tiling", description="")
    labels = Labels(
        direction_ids=["d"] * rows,
        strategy_ids=["tiling"] * rows,
        directions=(Direction(direction_id="d", name="d", description="", effect=NOTHING_YET),),
        strategies=(strategy,),
    )
    return assemble(raw, labels, Manifest(name="test"))


def test_a_repair_is_no_evidence_of_the_strategy_in_its_plan() -> None:
    """Two of three repairs failed as well: that says nothing of tiling, which failed once and gained twice."""
    first = mined(0, step("root", None, 100.0), step("a", "root", 80.0), step("b", "a", None), step("c", "b", None))
    second = mined(1, step("root", None, 100.0), step("a", "root", 80.0))
    third = mined(2, step("root", None, None), step("a", "root", None), step("b", "a", 50.0))
    found = memory(first, second, third)
    (strategy,) = found.strategies
    assert (strategy.effect.n, strategy.effect.failures) == (2, 1)
    repairs = [item for item in found.transitions() if item.repair]
    assert [item.transition_id for item in repairs] == ["t0/c", "t2/a", "t2/b"]
    assert {item.strategy_id for item in repairs} == {""}
    assert not {item.transition_id for item in repairs} & set(strategy.evidence)


@pytest.mark.parametrize("doubtful", ["root", "a"])
def test_an_unsteady_timing_moves_no_effect_and_lends_no_recipe(doubtful: str) -> None:
    def tried(task: int, gain: float, flags: frozenset[TrustFlag] = frozenset()) -> Trajectory:
        steps = (step("root", None, 100.0), step("a", "root", 100.0 / gain))
        return mined(task, *(replace(one, flags=flags) if one.step_id == doubtful else one for one in steps))

    steady = [tried(task, 1.2) for task in range(3)]
    unsteady = tried(3, 16.0, frozenset({TrustFlag.UNSTEADY}))
    (before,), (after,) = memory(*steady).strategies, memory(*steady, unsteady).strategies
    assert after.effect.mean == before.effect.mean
    assert after.effect.tasks == 3
    assert "t3/a" not in {excerpt.transition_id for excerpt in (*after.recipes, *after.templates)}
