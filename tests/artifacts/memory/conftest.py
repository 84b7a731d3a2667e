"""Hand-made transitions and memories."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Effect, Excerpt, Strategy, Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State, TrustFlag

UNKNOWN = Effect(mean=0.0, low=-2.0, high=2.0, n=0, tasks=0, failures=0)
DIRECTIONS = ("fusion", "memory_access", "tuning")
FAMILIES = ("matmul", "softmax", "reduction")


def transition(number: int, rng: random.Random) -> Transition:
    """A plausible transition; fusion helps softmax, memory access helps reductions."""
    family = FAMILIES[number // 3 % 3]
    direction = rng.choice(DIRECTIONS)
    failed = rng.random() < 0.2
    helped = (direction, family) in {("fusion", "softmax"), ("memory_access", "reduction")}
    reward = None if failed else rng.gauss(1.0 if helped else -0.1, 0.3)
    state = State(
        family=family,
        arch=rng.choice(["sm_80", "sm_90"]),
        language=Language.CUDA,
        bottleneck=rng.choice(list(Bottleneck)),
        log2_speedup=rng.gauss(0, 1),
        runtime_us=rng.uniform(10, 1000),
        last_outcome=None if number % 5 == 0 else Outcome.CORRECT,
        step=number % 6,
        features=frozenset(rng.sample(["shared_memory", "vector_load", "shuffle", "unroll"], 2)),
        history=tuple(rng.choices(DIRECTIONS, k=number % 3)),
    )
    return Transition(
        transition_id=f"log/t{number // 6}/{number:06d}",
        source="log_a" if number % 2 else "log_b",
        trajectory_id=f"log/t{number // 6}",
        task=TaskRef(task_id=f"kernelbench/1/{number // 3 % 12}_{family}", suite="kernelbench", family=family, level=1),
        device="NVIDIA A100",
        llm="model",
        state=state,
        direction_id=direction,
        strategy_id=f"{direction}.0",
        plan=f"try {direction} — 合并",
        outcome=Outcome.COMPILE_ERROR if failed else Outcome.CORRECT,
        reward=reward,
        expected=None,
        weight=rng.choice([0.5, 1.0]),
        flags=frozenset({TrustFlag.ONE_SEED} if number % 4 == 0 else ()),
        siblings=f"log/t{number // 6}/p{number // 3}",
        parent_sha256=f"{number // 3:064x}",
        child_sha256=f"{number + 1000:064x}",
        parent_us=100.0,
        child_us=None if reward is None else 100.0 / 2**reward,
        error="expected a ';'" if failed else "",
        choice_probability=None,
        provenance=Provenance(format="native", importer_version=1, file="a.jsonl", file_sha256="0" * 64, line=number),
        kernel="" if failed else f"// kernel {number} — 核",
        reference="" if failed else "the task",
    )


def built(transitions: list[Transition], name: str = "demo") -> Memory:
    """A memory over ``transitions`` with one strategy a direction."""
    transitions = sorted(transitions, key=lambda item: item.transition_id)
    ids = sorted({item.direction_id for item in transitions})
    resources = {"memory_access": "memory"}
    directions = tuple(
        Direction(direction_id=item, name=item, description="", effect=UNKNOWN, resource=resources.get(item, ""))
        for item in ids
    )
    strategies = tuple(
        Strategy(
            strategy_id=f"{item}.0",
            direction_id=item,
            name=item,
            intent=item,
            when=(),
            recipe="",
            template="",
            effect=UNKNOWN,
            risks=("you cannot",),
            evidence=tuple(t.transition_id for t in transitions if t.direction_id == item)[:50],
            risk_evidence=(tuple(t.transition_id for t in transitions if t.direction_id == item)[:1],),
            templates=tuple(
                Excerpt(text=f"code of {t.task.task_id}", transition_id=t.transition_id, gain=t.reward or 0.0)
                for t in transitions
                if t.direction_id == item
            )[:3],
        )
        for item in ids
    )
    table = transition_rows(transitions)
    return refreshed(Memory(manifest=Manifest(name=name), directions=directions, strategies=strategies, table=table))


@pytest.fixture(scope="session")
def transitions() -> list[Transition]:
    """Three hundred transitions."""
    rng = random.Random(7)
    return [transition(number, rng) for number in range(300)]


@pytest.fixture(scope="session")
def memory(transitions: list[Transition]) -> Memory:
    """A memory over them."""
    return built(transitions)


@pytest.fixture
def build() -> Callable[..., Memory]:
    """How to build one over other transitions."""
    return built
