"""Made-up run directories of ``htam optimize`` with the sizes and the repetitions of real logs.

Rates measured on five public collections (4,627 steps, 2,954 of them with a parent): 52 of 100 sources differ;
repetitions lie in other trajectories of the same task (83 of 100) or in the same one; 47 of 100 strategy texts differ;
74 of 100 steps are correct.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthetic_kernels import Kernel, changed, kernel

from artifacts.candidate import normalise_source
from artifacts.codec import encode
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.state import State
from artifacts.task import FAMILIES, TaskRef

STEPS = 20
"""Steps of a trajectory; the first has no parent."""
ATTEMPTS = 4
"""Trajectories of a task in the same run directory, under ids of their own."""
TASKS = 50
PER_RUN = STEPS * ATTEMPTS * TASKS
DISTINCT = 0.52
"""Share of the steps whose source is new."""
SAME_TRAJECTORY = 0.17
"""Share of the repeated sources that repeat one of their own trajectory."""
DISTINCT_TEXTS = 0.47
OUTCOMES = {"correct": 0.74, "compile_error": 0.085, "runtime_error": 0.07, "wrong_result": 0.1, "timeout": 0.005}
SAMPLES = 50
IDEAS = (
    "Vectorize the global loads of the {} with float4 so that each thread moves {} bytes at once.",
    "Stage tiles of the {} in shared memory and reuse each of them {} times before it is dropped.",
    "Fuse the {} epilogue into the kernel; this saves {} launches and a round trip through memory.",
    "Use warp shuffles for the reduction of the {} instead of {} steps through shared memory.",
    "Tune the block size of the {} kernel to {} threads.",
    "Unroll the inner loop over the {} by {} to raise instruction-level parallelism.",
    "Hide the latency of the {} with double buffering over {} stages.",
    "Use half precision for the {} and accumulate {} partial sums in float.",
    "Replace the {} by an algebraic simplification that needs {} operations.",
    "Use one thread block per row of the {} and let {} threads stride over it.",
)
REASONS = (
    " Nsight shows that the memory pipes are {} % busy, so fewer and wider transactions should help.",
    " The last attempt was {} % slower because of bank conflicts; the layout is padded now.",
    " Keep the result within {} ulp of the reference.",
    "",
)
OPERANDS = ("operand", "epilogue", "row sums", "bias", "weights", "running maximum", "gradient", "mask")


def write_runs(folder: Path, steps: int, workers: int = 2) -> dict[str, float]:
    """Write run directories with ``steps`` steps in all; returns what they hold."""
    runs = [(folder / f"run-{number:04d}", number, min(PER_RUN, steps - start)) for number, start in _starts(steps)]
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        written = list(pool.map(_write_run, runs))
    totals = [sum(column) for column in zip(*written, strict=True)]
    names = ("steps", "with_parent", "distinct_sources", "bytes")
    return dict(zip(names, totals, strict=True)) | {"runs": len(runs)}


def _starts(steps: int) -> list[tuple[int, int]]:
    return list(enumerate(range(0, steps, PER_RUN)))


@dataclass(slots=True)
class _Pool:
    """What one task of a run has seen: sources of all attempts, texts."""

    kernels: list[Kernel] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Node:
    step_id: str
    kernel: Kernel
    sha256: str
    runtime_us: float | None


def _write_run(order: tuple[Path, int, int]) -> tuple[int, int, int, int]:
    path, number, steps = order
    rng = random.Random(number)
    (path / "candidates").mkdir(parents=True)
    manifest = {"schema_version": 1, "run_id": f"synthetic-{number:04d}"}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    writer = _Writer(path / "candidates")
    lines: list[dict[str, Any]] = []
    with_parent = 0
    pools = [_Pool() for _ in range(TASKS)]
    for trajectory in range(-(-steps // STEPS)):
        count = min(STEPS, steps - trajectory * STEPS)
        lines += _trajectory(rng, writer, number, trajectory, count, pools[trajectory % TASKS])
        with_parent += count - 1
    with (path / "events.jsonl").open("w", encoding="ascii") as file:
        for seq, line in enumerate(lines):
            text = json.dumps({"v": 1, "seq": seq, "time": 1.8e9 + seq, **line}, separators=(",", ":"))
            file.write(text + "\n")
    size = sum(file.stat().st_size for file in (*(path / "candidates").iterdir(), path / "events.jsonl"))
    return steps, with_parent, writer.written, size


@dataclass(slots=True)
class _Writer:
    folder: Path
    known: dict[Kernel, str] = field(default_factory=dict)
    written: int = 0

    def add(self, made: Kernel) -> str:
        """Store a source under its hash."""
        if made not in self.known:
            text = normalise_source(made.source())
            name = hashlib.sha256(text.encode()).hexdigest()
            (self.folder / f"{name}.py").write_text(text, encoding="utf-8")
            self.known[made] = name
            self.written += 1
        return self.known[made]


def _trajectory(
    rng: random.Random, writer: _Writer, run: int, trajectory: int, count: int, pool: _Pool
) -> list[dict[str, Any]]:
    family = FAMILIES[trajectory % len(FAMILIES)]
    # Attempts of a task are tasks of their own here, because a run directory holds one trajectory a task.
    name = f"synthetic/{run}/{trajectory % TASKS}-{trajectory // TASKS}"
    task = TaskRef(task_id=name, suite="synthetic", family=family)
    if not pool.kernels:
        pool.kernels.append(kernel(rng))
    started = TaskStarted(task=task, source_sha256=writer.add(pool.kernels[0]), path="task.py")
    lines: list[dict[str, Any]] = [{"kind": "task_started", "key": task.task_id, "payload": encode(started)}]
    nodes: list[_Node] = []
    for index in range(count):
        parent = rng.choice(nodes[-6:]) if nodes else None
        made = _next_kernel(rng, parent, nodes, pool)
        runtime = _runtime(rng, parent)
        node = _Node(f"{index}.0", made, writer.add(made), runtime)
        lines.append(_step(rng, task, index, node, parent, _text(rng, pool)))
        if runtime is not None or rng.random() < 0.3 or not nodes:
            nodes.append(node)
    return lines


def _next_kernel(rng: random.Random, parent: _Node | None, nodes: list[_Node], pool: _Pool) -> Kernel:
    if rng.random() >= DISTINCT and len(pool.kernels) > 1:
        own = nodes and rng.random() < SAME_TRAJECTORY
        return rng.choice(nodes).kernel if own else rng.choice(pool.kernels)
    pool.kernels.append(changed(parent.kernel if parent else pool.kernels[0], rng))
    return pool.kernels[-1]


def _runtime(rng: random.Random, parent: _Node | None) -> float | None:
    if rng.random() > OUTCOMES["correct"]:
        return None
    before = parent.runtime_us if parent is not None and parent.runtime_us is not None else 2.0 ** rng.gauss(9, 2)
    return float(before * 2.0 ** rng.gauss(0.0, 0.5))


def _text(rng: random.Random, pool: _Pool) -> str:
    if pool.texts and rng.random() > DISTINCT_TEXTS:
        return rng.choice(pool.texts)
    parts = [rng.choice(IDEAS).format(rng.choice(OPERANDS), rng.randrange(2, 10_000))]
    parts.append(rng.choice(REASONS).format(rng.randrange(2, 100)))
    pool.texts.append("".join(parts))
    return pool.texts[-1]


def _step(
    rng: random.Random, task: TaskRef, index: int, node: _Node, parent: _Node | None, plan: str
) -> dict[str, Any]:
    language = node.kernel.language
    state = State(family=task.family, arch=rng.choice(("sm_80", "sm_90")), language=language, step=index)  # type: ignore[arg-type]
    before = parent.runtime_us if parent is not None else None
    step = LoggedStep(
        task_id=task.task_id,
        step_id=node.step_id,
        parent_id=None if parent is None else parent.step_id,
        index=index,
        mode="optimize",
        candidate_sha256=node.sha256,
        parent_sha256="" if parent is None else parent.sha256,
        direction="",
        strategies=(),
        plan=plan,
        state=state,
        measurement=None,
        model="synthetic",
    )
    payload = encode(step)
    payload["state"] |= {
        "runtime_us": before,
        "log2_progress": round(rng.gauss(0.5, 1.0), 4),
        "stagnation": index % 4,
        "bottleneck": rng.choice(("memory", "compute", "unknown")),
        "fraction_of_bound": round(rng.random(), 4),
    }
    payload["measurement"] = _measurement(rng, node)
    return {"kind": "step", "key": f"{task.task_id}/{node.step_id}", "payload": payload}


def _measurement(rng: random.Random, node: _Node) -> dict[str, Any]:
    base = {"stage": "timing", "device": "NVIDIA H100", "gpu_s": 1.5, "build_s": 20.0}
    if node.runtime_us is None:
        names = list(OUTCOMES)[1:]
        outcome = rng.choices(names, [OUTCOMES[name] for name in names])[0]
        return base | {"outcome": outcome, "error": "values differ from the reference: largest difference 0.3 at 17"}
    time = node.runtime_us
    samples = [round(time * rng.uniform(0.98, 1.05), 3) for _ in range(SAMPLES)]
    timing = {"median_us": time, "low_us": time * 0.99, "high_us": time * 1.01, "samples_us": samples}
    eager = {"median_us": time * 2, "low_us": time * 1.9, "high_us": time * 2.1, "samples_us": samples}
    profile = {
        "bottleneck": "memory",
        "evidence": "counters",
        "bound_us": time / 2,
        "fraction_of_bound": 0.5,
        "findings": [],
        "metrics": {"dram_pct": 50.0, "sm_pct": 20.0, "duration_ns": time * 1000},
    }
    return base | {"outcome": "correct", "timing": timing, "baselines": {"eager": eager}, "profile": profile}
