"""Made-up run directories of ``htam optimize`` with the sizes and the repetitions of real logs.

Measured on five public collections (4,627 steps, 2,954 of them with a parent): 52 of 100 sources differ. Of those that
repeat, 17 of 100 do so in their own trajectory, 8 in another of the same file, 75 in another file of the same folder,
mostly because the same code was timed on several devices: 32 of 100 pairs of parent and child are repeated whole, and
in 9 the child is its parent. Half of the steps have no plan; of the plans 63 of 100 differ, and 36 are pages of 6,000
characters. 78 of 100 steps are correct; the messages of the others are some 1,500 characters long. Lengths and edits of
sources: ``synthetic_kernels.py``.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
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
TASKS = 50
"""Trajectories of a run directory, one a task."""
PER_RUN = STEPS * TASKS
RUNS = 4
"""Run directories that share their tasks; they lie side by side."""
COPIED = 0.43
"""Share of the trajectories of later runs that hold the sources of the run before, timed anew."""
OWN = 0.117
"""Share of the other steps whose source is one of their own trajectory (half of them: of their parent)."""
OTHERS = 0.14
"""Share of the other steps whose source is one of another trajectory of the task."""
NEW_PLAN = 0.9
PLANLESS = 0.5
"""Share of the tasks whose steps have no plan."""
LONG_PLAN = 0.36
PAGES = 6000
"""Characters at which logs cut a plan."""
OUTCOMES = {"correct": 0.78, "compile_error": 0.08, "runtime_error": 0.07, "wrong_result": 0.067, "timeout": 0.003}
ERROR = (6.5, 1.2)
"""Logarithm of the median length of a message, and its spread."""
LONGEST_ERROR = 10_000
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
MESSAGES = (
    'kernel.cu({0}): error: identifier "tile_{0}" is undefined',
    '  File "candidate.py", line {0}, in forward',
    "values of the {1} differ from the reference: largest difference 0.{0} at {0}",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "    y = launch_{0}(x, self.weight, self.bias)  # {1}",
    'nvcc warning : variable "unused_{0}" was declared but never referenced',
)
OPERANDS = ("operand", "epilogue", "row sums", "bias", "weights", "running maximum", "gradient", "mask")


def write_runs(folder: Path, steps: int, workers: int = 2) -> dict[str, float]:
    """Write run directories with ``steps`` steps in all; returns what they hold."""
    groups = [
        (folder, group, min(PER_RUN * RUNS, steps - start))
        for group, start in enumerate(range(0, steps, PER_RUN * RUNS))
    ]
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        written = list(pool.map(_write_group, groups))
    totals = [sum(column) for column in zip(*written, strict=True)]
    return dict(zip(("steps", "with_parent", "distinct_sources", "bytes", "runs"), totals, strict=True))


@dataclass(slots=True)
class _Pool:
    """What one task has seen: sources of all its trajectories, texts, the last trajectory."""

    kernels: list[Kernel] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    last: list[_Node] = field(default_factory=list)
    planless: bool = False


@dataclass(frozen=True, slots=True)
class _Node:
    """A step before it is written; ``parent`` is its number in the trajectory."""

    kernel: Kernel
    parent: int | None
    plan: str
    runtime_us: float | None


def _write_group(order: tuple[Path, int, int]) -> tuple[int, int, int, int, int]:
    folder, group, steps = order
    rng = random.Random(group)
    pools = [_Pool(planless=rng.random() < PLANLESS) for _ in range(TASKS)]
    known: set[str] = set()
    size = with_parent = runs = 0
    for start in range(0, steps, PER_RUN):
        number = group * RUNS + runs
        here = min(PER_RUN, steps - start)
        size += _write_run(folder / f"run-{number:05d}", rng, number, here, pools, known)
        with_parent += here - -(-here // STEPS)
        runs += 1
    return steps, with_parent, len(known), size, runs


def _write_run(path: Path, rng: random.Random, number: int, steps: int, pools: list[_Pool], known: set[str]) -> int:
    """Write one run; returns its bytes and adds the names of its sources to ``known``."""
    (path / "candidates").mkdir(parents=True)
    manifest = {"schema_version": 1, "run_id": f"synthetic-{number:05d}"}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    writer = _Writer(path / "candidates")
    lines: list[dict[str, Any]] = []
    for index, start in enumerate(range(0, steps, STEPS)):
        pool = pools[index]
        pool.last = _trajectory(rng, pool, min(STEPS, steps - start))
        lines += _events(rng, writer, f"synthetic/{number // RUNS}/{index}", pool)
    known.update(writer.known.values())
    with (path / "events.jsonl").open("w", encoding="ascii") as file:
        for seq, line in enumerate(lines):
            text = json.dumps({"v": 1, "seq": seq, "time": 1.8e9 + seq, **line}, separators=(",", ":"))
            file.write(text + "\n")
    return writer.size + (path / "events.jsonl").stat().st_size


@dataclass(slots=True)
class _Writer:
    folder: Path
    known: dict[Kernel, str] = field(default_factory=dict)
    size: int = 0

    def add(self, made: Kernel) -> str:
        """Store a source under its hash."""
        if made not in self.known:
            data = normalise_source(made.source()).encode()
            name = hashlib.sha256(data).hexdigest()
            (self.folder / f"{name}.py").write_bytes(data)
            self.known[made] = name
            self.size += len(data)
        return self.known[made]


def _trajectory(rng: random.Random, pool: _Pool, count: int) -> list[_Node]:
    if not pool.kernels:
        pool.kernels.append(kernel(rng))
    if len(pool.last) >= count and rng.random() < COPIED:
        speed = 2.0 ** rng.gauss(0.0, 1.0)  # of the other device
        return [replace(node, runtime_us=_on(speed, node.runtime_us, rng)) for node in pool.last[:count]]
    nodes: list[_Node] = []
    alive: list[int] = []
    for number in range(count):
        parent = rng.choice(alive[-6:]) if alive else None
        made = _next_kernel(rng, parent, nodes, pool)
        runtime = _runtime(rng, None if parent is None else nodes[parent])
        nodes.append(_Node(made, parent, _plan(rng, pool), runtime))
        if runtime is not None or rng.random() < 0.3 or not alive:
            alive.append(number)
    return nodes


def _on(speed: float, runtime_us: float | None, rng: random.Random) -> float | None:
    return None if runtime_us is None else runtime_us * speed * 2.0 ** rng.gauss(0.0, 0.1)


def _next_kernel(rng: random.Random, parent: int | None, nodes: list[_Node], pool: _Pool) -> Kernel:
    deed = rng.random()
    if parent is not None and deed < OWN:
        return nodes[parent].kernel if rng.random() < 0.5 else rng.choice(nodes).kernel
    if deed < OWN + OTHERS:
        return rng.choice(pool.kernels)
    pool.kernels.append(changed(nodes[parent].kernel if parent is not None else pool.kernels[0], rng))
    return pool.kernels[-1]


def _runtime(rng: random.Random, parent: _Node | None) -> float | None:
    if rng.random() > OUTCOMES["correct"]:
        return None
    before = parent.runtime_us if parent is not None and parent.runtime_us is not None else 2.0 ** rng.gauss(9, 2)
    return float(before * 2.0 ** rng.gauss(0.0, 0.5))


def _plan(rng: random.Random, pool: _Pool) -> str:
    if pool.planless:
        return ""
    if pool.texts and rng.random() > NEW_PLAN:
        return rng.choice(pool.texts)
    long = rng.random() < LONG_PLAN
    wanted = PAGES if long else min(rng.lognormvariate(5.4, 0.5), PAGES)
    parts: list[str] = []
    while sum(map(len, parts)) < wanted:
        parts.append(rng.choice(IDEAS).format(rng.choice(OPERANDS), rng.randrange(2, 10_000)))
        parts.append(rng.choice(REASONS).format(rng.randrange(2, 100)) + ("\n" if long else " "))
    pool.texts.append("".join(parts)[:PAGES])
    return pool.texts[-1]


def _events(rng: random.Random, writer: _Writer, name: str, pool: _Pool) -> list[dict[str, Any]]:
    task = TaskRef(task_id=name, suite="synthetic", family=FAMILIES[sum(map(ord, name)) % len(FAMILIES)])
    started = TaskStarted(task=task, source_sha256=writer.add(pool.kernels[0]), path="task.py")
    steps = [_step(rng, writer, task, number, pool.last) for number in range(len(pool.last))]
    return [{"kind": "task_started", "key": task.task_id, "payload": encode(started)}, *steps]


def _step(rng: random.Random, writer: _Writer, task: TaskRef, number: int, nodes: list[_Node]) -> dict[str, Any]:
    node = nodes[number]
    parent = None if node.parent is None else nodes[node.parent]
    language = node.kernel.language
    state = State(family=task.family, arch=rng.choice(("sm_80", "sm_90")), language=language, step=number)  # type: ignore[arg-type]
    step = LoggedStep(
        task_id=task.task_id,
        step_id=f"{number}.0",
        parent_id=None if parent is None else f"{node.parent}.0",
        index=number,
        mode="optimize",
        candidate_sha256=writer.add(node.kernel),
        parent_sha256="" if parent is None else writer.add(parent.kernel),
        direction="",
        strategies=(),
        plan=node.plan,
        state=state,
        measurement=None,
        model="synthetic",
    )
    payload = encode(step)
    payload["state"] |= {
        "runtime_us": None if parent is None else parent.runtime_us,
        "log2_progress": round(rng.gauss(0.5, 1.0), 4),
        "stagnation": number % 4,
        "bottleneck": rng.choice(("memory", "compute", "unknown")),
        "fraction_of_bound": round(rng.random(), 4),
    }
    payload["measurement"] = _measurement(rng, node)
    return {"kind": "step", "key": f"{task.task_id}/{number}.0", "payload": payload}


def _error(rng: random.Random) -> str:
    wanted = min(rng.lognormvariate(*ERROR), LONGEST_ERROR)
    lines: list[str] = []
    while sum(map(len, lines)) < wanted:
        lines.append(rng.choice(MESSAGES).format(rng.randrange(1, 400), rng.choice(OPERANDS)))
    return "\n".join(lines)[:LONGEST_ERROR]


def _measurement(rng: random.Random, node: _Node) -> dict[str, Any]:
    base = {"stage": "timing", "device": "NVIDIA H100", "gpu_s": 1.5, "build_s": 20.0}
    if node.runtime_us is None:
        names = list(OUTCOMES)[1:]
        outcome = rng.choices(names, [OUTCOMES[name] for name in names])[0]
        return base | {"outcome": outcome, "error": _error(rng)}
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
