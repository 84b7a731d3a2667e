"""What a device's own runs know that public logs do not: ``python -P benchmarks/own_device.py NAME --store STORE``.

The memory holds public logs and the project's H200 runs of one model. Of each recorded H200 task everything is
forgotten, then the rest is asked about the task's steps:

1. *order*: what is expected of a step's strategy, beyond its state, against what the step gained: rank correlation, and
   the share of pairs of steps of one task that it puts in the right order. For the public logs alone, for all
   experience at several weights of other devices, and for the H200 runs of the other tasks alone.
2. *moves*: steps that put products on tensor cores (none, mma, wgmma; read from the sources) are moves that can be told
   by program. Where the ledger's examples, from other tasks, show a move that starts where a kernel stands, did steps
   that made it gain more than those that did not?

Intervals are 95 % bootstrap intervals over tasks. Writes benchmarks/results/own_device.json. Observed, not assigned: a
step that made a move may have been ready for it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.candidate import Language  # noqa: E402
from artifacts.features import code_features  # noqa: E402
from artifacts.memory.attention import AttentionSettings, attend, expected_gain  # noqa: E402
from artifacts.memory.htg import Memory  # noqa: E402
from artifacts.memory.records import Transition  # noqa: E402
from optimizer.run.opening import load_memory  # noqa: E402
from optimizer.search.cargo import Cargo  # noqa: E402
from optimizer.search.ledger import Ledger  # noqa: E402

OWN = ("htam/htam", "htam/feedback")
LOGS = REPOSITORY / "examples" / "logs"
APART = 0.07
"""Log2 gain by which two steps differ if their order is to count: 5 %."""
FLOOR = -1.0
"""Of a gain: what a failed step counts."""
ByTask = dict[str, list[float]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memory", help="NAME[@VERSION|@TAG]")
    parser.add_argument("--store", default="memories")
    options = parser.parse_args()
    begun = time.perf_counter()
    memory = load_memory(options.store, options.memory)
    steps = [row for row in memory.transitions() if row.source in OWN and row.parent_us and gain_of(row) is not None]
    tasks = sorted({row.task.task_id for row in steps})
    left = {task: memory.filter(exclude_tasks=[task]) for task in tasks}
    figures: dict[str, Any] = {"order": ordered(memory, left, steps), "moves": moves(left, steps)}
    figures |= {"memory": len(memory), "steps": len(steps), "tasks": len(tasks)}
    write_results("own_device", figures | {"seconds": time.perf_counter() - begun})


def gain_of(row: Transition) -> float | None:
    """Log2 gain of a step, floored; None where nothing can be said."""
    if row.reward is None:
        return FLOOR if row.outcome.charged_to_candidate else None
    return max(FLOOR, row.reward)


def ordered(memory: Memory, left: dict[str, Memory], steps: Sequence[Transition]) -> list[dict[str, Any]]:
    """How well each body of experience orders the steps."""
    public = memory.filter(exclude_sources=[name for name in memory.columns.source.names if name.startswith("htam/")])
    others = [name for name in memory.columns.source.names if name not in OWN]
    own = {task: one.filter(exclude_sources=set(others) & set(one.columns.source.names)) for task, one in left.items()}
    asked: dict[str, tuple[Callable[[str], Memory], float]] = {
        "public logs alone": (lambda _: public, 0.5),
        "all, other devices at 0.5": (left.__getitem__, 0.5),
        "all, other devices at 0.1": (left.__getitem__, 0.1),
        "all, other devices at 0": (left.__getitem__, 0.0),
        "own runs of other tasks alone": (own.__getitem__, 0.5),
    }
    rows = []
    for name, (source, discount) in asked.items():
        settings = AttentionSettings(arch_discount=discount)
        told = [(row, promised(source(row.task.task_id), row, settings)) for row in steps]
        for what, only in (("all", ""), ("compute runs", "cuda_compute")):
            chosen = [one for one in told if one[0].task.task_id.startswith(only)]
            row = {"experience": name, "tasks": what, "steps": len(chosen)} | {
                score: judged([(item, scores[place]) for item, scores in chosen])
                for place, score in enumerate(("state", "direction", "strategy"))
            }
            print(name, what, {key: row[key] for key in ("state", "direction", "strategy")}, flush=True)
            rows.append(row)
    return rows


def promised(memory: Memory, row: Transition, settings: AttentionSettings) -> tuple[float, float, float]:
    """What is expected of a step: from its state, and of its direction and strategy beyond that; 0 for the unknown."""
    view, base = attend(memory, (), row.state, settings), expected_gain(memory, row.state)
    direction = next((one.mean - base for one in view.directions() if one.direction_id == row.direction_id), 0.0)
    every = view.strategies(None, len(memory.strategies))
    strategy = next((one.mean - base for one in every if one.strategy.strategy_id == row.strategy_id), direction)
    return base, direction, strategy


def judged(told: Sequence[tuple[Transition, float]]) -> dict[str, Any]:
    """Rank correlation, and the pairs of steps of one task that are in order."""
    gains = np.array([gain_of(row) for row, _ in told], float)
    scores = np.array([score for _, score in told])
    shares: ByTask = defaultdict(list)
    for first, (row, score) in enumerate(told):
        for second in range(first + 1, len(told)):
            other, rival = told[second]
            apart = gains[first] - gains[second]
            if other.task == row.task and abs(apart) >= APART:
                tie = abs(score - rival) < 1e-9
                shares[row.task.task_id].append(0.5 if tie else float((score > rival) == (apart > 0)))
    return {"rank_correlation": float(np.corrcoef(ranks(gains), ranks(scores))[0, 1]), "in_order": interval(shares)}


def ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ranks, ties averaged."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray[Any, Any] = (np.cumsum(count) - (count - 1) / 2)[place]
    return found


def moves(left: dict[str, Memory], steps: Sequence[Transition]) -> list[dict[str, Any]]:
    """Gains of steps by whether they made a move to tensor cores that the ledger showed."""
    made = {(row.task.task_id.rsplit("/", 1)[-1], flat(row.plan)): move(row) for row in steps}
    arithmetic = {row.task.task_id for row in steps if move(row)[1] != "none"}
    groups: dict[tuple[str, str], ByTask] = defaultdict(lambda: defaultdict(list))
    for task, memory in left.items():
        ledger = Ledger(memory, Cargo(memory, Language.CUDA), "sm_90", Language.CUDA.value)
        for row in (one for one in steps if one.task.task_id == task and one.reward is not None):
            shown = {made.get((one.operator, one.text), ("", "")) for one in ledger.examples(row.state)}
            open_ones = {one for one in shown if one[0] == move(row)[0] and one[0] != one[1]}
            what = "made" if move(row) in open_ones else "shown, not made" if open_ones else "not shown"
            kind = "arithmetic" if task in arithmetic else "memory"
            groups[kind, what][task].append(row.reward or 0.0)
    rows: list[dict[str, Any]] = []
    for (kind, what), by_task in sorted(groups.items()):
        rows.append({"tasks": kind, "move": what, "steps": sum(map(len, by_task.values())), "gain": factor(by_task)})
    both = groups["arithmetic", "made"], groups["arithmetic", "shown, not made"]
    pairs = {task: [float(np.mean(both[0][task]) - np.mean(both[1][task]))] for task in both[0] if task in both[1]}
    rows.append({"tasks": "arithmetic", "move": "made against not made, paired", "gain": factor(pairs)})
    for found in rows:
        print(found, flush=True)
    return rows


def move(row: Transition) -> tuple[str, str]:
    """Tensor-core interface before and after a step."""
    return interface(row.parent_sha256), interface(row.child_sha256)


@cache
def interface(sha256: str) -> str:
    """``none``, ``mma`` or ``wgmma``, from the source of a candidate."""
    file = next(LOGS.glob(f"*/candidates/{sha256}.py"))
    names = code_features(file.read_text()).names
    if "tensor_core_wgmma" in names:
        return "wgmma"
    return "mma" if names & {"tensor_core_mma", "tensor_core_wmma"} else "none"


def flat(text: str) -> str:
    """As the ledger tells it."""
    return " ".join(text.split())


def factor(by_task: ByTask) -> dict[str, Any]:
    """Geometric mean over tasks of speed after over speed before, with its interval."""
    found = interval(by_task)
    return {name: value if name == "tasks" else 2**value for name, value in found.items()}


def interval(by_task: ByTask) -> dict[str, Any]:
    """Mean over tasks of their means, with a bootstrap interval over tasks."""
    means = [float(np.mean(values)) for values in by_task.values()]
    draw = random.Random(0)
    resampled = sorted(mean(draw.choices(means, k=len(means))) for _ in range(2000))
    return {"value": mean(means), "low": resampled[50], "high": resampled[1949], "tasks": len(means)}


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan


if __name__ == "__main__":
    main()
