"""Failures that gather in some state become a risk, those that do not become none."""

from __future__ import annotations

import random
from collections.abc import Callable

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Effect, Strategy, Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State
from builder.link.risks import with_risky_states

NOTHING = Effect(mean=0.0, low=0.0, high=0.0, n=0, tasks=0, failures=0)
PLACE = Provenance(format="f", importer_version=1, file="f", file_sha256="0" * 64)


def step(number: int, *, masked: bool, failed: bool) -> Transition:
    return Transition(
        transition_id=f"t{number:03d}",
        source="log",
        trajectory_id=f"run{number // 4}",
        task=TaskRef(task_id=f"suite/1/{number // 4}", suite="suite", family="softmax"),
        device="NVIDIA A100",
        llm="",
        state=State(
            family="softmax",
            arch="sm_80",
            language=Language.CUDA,
            runtime_us=10.0,
            features=frozenset({"boundary_check"} if masked else ()),
        ),
        direction_id="reuse",
        strategy_id="reuse.tiles",
        plan="tile",
        outcome=Outcome.WRONG_RESULT if failed else Outcome.CORRECT,
        reward=None if failed else 0.1,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"run{number // 4}/0>",
        parent_sha256="0" * 64,
        child_sha256="1" * 64,
        parent_us=10.0,
        child_us=None if failed else 9.3,
        error="wrong" if failed else "",
        choice_probability=None,
        provenance=PLACE,
    )


def memory(fails: Callable[[int, bool], bool], count: int = 120) -> Memory:
    steps = [step(number, masked=number % 2 == 0, failed=fails(number, number % 2 == 0)) for number in range(count)]
    strategy = Strategy(
        strategy_id="reuse.tiles",
        direction_id="reuse",
        name="Tiles",
        intent="tile",
        when=(),
        recipe="",
        template="",
        effect=NOTHING,
        risks=("older",),
        evidence=(),
        risk_evidence=(("t000",),),
    )
    direction = Direction(direction_id="reuse", name="Reuse", description="", effect=NOTHING, resource="")
    return Memory(
        manifest=Manifest(name="demo"), directions=(direction,), strategies=(strategy,), table=transition_rows(steps)
    )


def test_failures_that_gather_in_a_state_become_its_risk_with_their_transitions() -> None:
    found = with_risky_states(memory(lambda number, masked: masked and number % 3 > 0)).strategies[0]
    assert found.risks[0] == (
        "You cannot count on it where the kernel has boundary check: 40 of 60 attempts failed there, 0 of 60 elsewhere"
    )
    assert found.risks[1:] == ("older",)
    assert len(found.risks) == len(found.risk_evidence)
    assert set(found.risk_evidence[0]) <= {f"t{number:03d}" for number in range(0, 120, 2)}


def test_failures_that_come_by_chance_become_no_risk() -> None:
    rng = random.Random(0)
    given = [memory(lambda number, masked: rng.random() < 0.3) for _ in range(20)]
    assert sum(with_risky_states(one).strategies[0].risks != ("older",) for one in given) <= 1


def test_failures_of_one_half_of_the_tasks_alone_become_no_risk() -> None:
    few = with_risky_states(memory(lambda number, masked: masked and number < 8)).strategies[0]
    assert few.risks == ("older",)
