"""A made-up memory of any size for the tests of the pages and commands."""

from __future__ import annotations

import random

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Effect, Strategy, Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State

UNKNOWN = Effect(mean=0.0, low=0.0, high=0.0, n=0, tasks=0, failures=0)
NAMES = {
    "fusion": "Fusion",
    "memory_access": "Memory access",
    "data_reuse": "Data reuse",
    "parallel_mapping": "Parallel mapping",
    "simplification": "Algorithmic simplification",
    "tuning": "Parameter tuning",
    "throughput": "Instruction throughput",
    "boundary": "Boundary handling",
    "precision": "Tensor cores and precision",
    "launch": "Launch overhead",
}
FAMILIES = ("matmul", "softmax", "reduction", "fusion")
DEVICES = {"NVIDIA A800": "sm_80", "NVIDIA H200": "sm_90", "cpu": "cpu"}


def memory(strategies: int = 12, transitions: int = 400, name: str = "mined") -> Memory:
    """A memory with ``strategies`` spread over ten directions."""
    rng = random.Random(3)
    ids = list(NAMES)
    directions = tuple(
        Direction(
            direction_id=item, name=NAMES[item], description=f"Steps that aim at {NAMES[item].lower()}.", effect=UNKNOWN
        )
        for item in ids
    )
    listed = tuple(_strategy(number, ids[number % len(ids)]) for number in range(strategies))
    rows = [_transition(number, listed[int(rng.random() ** 2 * strategies)], rng) for number in range(transitions)]
    empty = Memory(manifest=Manifest(name=name), directions=directions, strategies=listed, table=transition_rows(rows))
    return refreshed(empty)


def _strategy(number: int, direction: str) -> Strategy:
    return Strategy(
        strategy_id=f"{direction}.{number}",
        direction_id=direction,
        name=f"{NAMES[direction]}: variant {number}",
        intent=f"Apply {NAMES[direction].lower()} in form {number} <to the inner loop>.",
        when=(),
        recipe="Load 128 bits a thread, keep partial sums in registers, reduce by shuffles.",
        template="__global__ void kernel(const float* x, float* y, int n) { /* ... */ }",
        effect=UNKNOWN,
        risks=(),
        evidence=(),
    )


def _transition(number: int, strategy: Strategy, rng: random.Random) -> Transition:
    group = number // 4  # siblings: four attempts from one parent
    family = FAMILIES[group % len(FAMILIES)]
    device = list(DEVICES)[group % len(DEVICES)]
    failed = rng.random() < 0.25
    centre = (list(NAMES).index(strategy.direction_id) - 5) / 5
    reward = None if failed else rng.gauss(centre, 0.4)
    shown = number % 40 == 1 and reward is not None
    state = State(
        family=family,
        arch=DEVICES[device],
        language=Language.CUDA,
        log2_speedup=1.0 if shown else None,
        step=number % 4,
        history=tuple(rng.choices(list(NAMES), k=number % 4)),
    )
    return Transition(
        transition_id=f"log/t{group}/{number:06d}",
        source=f"log_{group % 2}",
        trajectory_id=f"log/t{group}",
        task=TaskRef(task_id=f"kernelbench/1/{group % 12}_{family}", suite="kernelbench", family=family, level=1),
        device=device,
        llm="model",
        state=state,
        direction_id=strategy.direction_id,
        strategy_id=strategy.strategy_id,
        plan="Keep the row in registers & reduce it with <shuffles>.",
        outcome=Outcome.WRONG_RESULT if failed else Outcome.CORRECT,
        reward=reward,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"log/t{group}/p",
        parent_sha256=f"{number // 3:064x}",
        child_sha256=f"{number + 1000:064x}",
        parent_us=100.0,
        child_us=None if reward is None else 100.0 / 2**reward,
        error="max error 0.5" if failed else "",
        choice_probability=None,
        provenance=Provenance(format="native", importer_version=1, file="a.jsonl", file_sha256="0" * 64, line=number),
        kernel=f"// kernel {number}\n" if shown else "",
        reference="the task" if shown else "",
    )
