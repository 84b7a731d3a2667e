"""A small memory in which one direction clearly helps one family."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Condition, Direction, Effect, Strategy, Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State

NOTHING = Effect(mean=0.0, low=-1.0, high=1.0, n=0, tasks=0, failures=0)
HELPS = {"softmax": "fusion", "reduction": "access", "matmul": "tiling"}
DIRECTIONS = ("access", "fusion", "tiling")


def make_transition(number: int, draw: random.Random, family: str) -> Transition:
    direction = draw.choice(DIRECTIONS)
    failed = draw.random() < 0.15
    reward = None if failed else draw.gauss(1.0 if HELPS[family] == direction else -0.2, 0.2)
    state = State(
        family=family,
        arch="cpu",
        language=Language.CPP,
        bottleneck=draw.choice([Bottleneck.MEMORY, Bottleneck.COMPUTE]),
        fraction_of_bound=draw.uniform(0.1, 0.6),
        log2_speedup=draw.gauss(0, 0.5),
        runtime_us=100.0,
        last_outcome=Outcome.CORRECT,
        step=number % 4,
        features=frozenset(draw.sample(["shared_memory", "vector_load", "shuffle"], 2)),
        history=tuple(draw.choices(DIRECTIONS, k=number % 3)),
    )
    return Transition(
        transition_id=f"log/{family}/{number:04d}",
        source="log",
        trajectory_id=f"log/{family}/{number // 4}",
        task=TaskRef(task_id=f"suite/1/{family}_{number % 5}", suite="suite", family=family, level=1),
        device="cpu",
        llm="model",
        state=state,
        direction_id=direction,
        strategy_id=f"{direction}.0",
        plan=f"try {direction}",
        outcome=Outcome.COMPILE_ERROR if failed else Outcome.CORRECT,
        reward=reward,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"log/{family}/p{number // 2}",
        parent_sha256=f"{number:064x}",
        child_sha256=f"{number + 5000:064x}",
        parent_us=100.0,
        child_us=None if reward is None else 100.0 / 2**reward,
        error="error: expected ';'" if failed else "",
        choice_probability=None,
        provenance=Provenance(format="native", importer_version=1, file="a.jsonl", file_sha256="0" * 64, line=number),
    )


def build_memory(count: int = 240) -> Memory:
    draw = random.Random(5)
    transitions = [make_transition(number, draw, list(HELPS)[number % 3]) for number in range(count)]
    directions = tuple(
        Direction(
            direction_id=name,
            name=f"the {name} direction",
            description=f"all about {name}",
            effect=NOTHING,
            resource="memory" if name == "access" else "",
        )
        for name in DIRECTIONS
    )
    strategies = tuple(
        Strategy(
            strategy_id=f"{name}.{number}",
            direction_id=name,
            name=f"{name} {number}",
            intent=f"use {name}",
            when=(Condition(field="family", op="!=", value="loss", words="the operator is not loss"),),
            recipe=f"recipe of {name} {number}",
            template="",
            effect=NOTHING,
            risks=(),
            evidence=(),
        )
        for name in DIRECTIONS
        for number in range(2)
    )
    rows = transition_rows(transitions)
    return refreshed(Memory(manifest=Manifest(name="small"), directions=directions, strategies=strategies, table=rows))


@pytest.fixture(scope="session")
def memory() -> Memory:
    """240 transitions, 3 directions, 6 strategies."""
    return build_memory()


@pytest.fixture(scope="session")
def memory_of_moves(memory: Memory) -> Memory:
    """The same, in which each direction was one move; that of tiling makes no sense for rows."""
    made = {"access": "+prefetch", "fusion": "+polynomial -simd", "tiling": "+register_tile"}
    moves = pa.array([made[name] for name in memory.table["direction_id"].to_pylist()])
    place = memory.table.schema.get_field_index("moves")
    field = memory.table.schema.field(place)
    return replace(memory, table=memory.table.set_column(place, field, moves.cast(field.type)))


@pytest.fixture
def softmax_state() -> State:
    """A correct softmax kernel with room to grow."""
    return State(
        family="softmax",
        arch="cpu",
        language=Language.CPP,
        bottleneck=Bottleneck.MEMORY,
        fraction_of_bound=0.3,
        log2_speedup=0.0,
        runtime_us=100.0,
        last_outcome=Outcome.CORRECT,
        step=1,
    )
