"""What the search loop itself costs a step, beside the model and the device, with a large memory.

    python -P benchmarks/loop.py --transitions 1000 10000 100000 --out benchmarks/results/loop.json

Model and bench answer at once, so all that is timed is the loop: state, choice, prompt, answer, log (each event is
synced to disk). Arms with and without memory run side by side; the goal is 50 ms a step at 100,000 transitions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from artifacts.candidate import Language  # noqa: E402
from artifacts.measurement import Bottleneck, EvidenceLevel, Measurement, Profile, Timing  # noqa: E402
from artifacts.memory.effects import refreshed  # noqa: E402
from artifacts.memory.htg import Memory  # noqa: E402
from artifacts.memory.manifest import Manifest  # noqa: E402
from artifacts.memory.records import Direction, Effect, Strategy, Transition  # noqa: E402
from artifacts.memory.tables import transition_rows  # noqa: E402
from artifacts.outcome import Outcome  # noqa: E402
from artifacts.runlog import Event, RunLog  # noqa: E402
from artifacts.state import State  # noqa: E402
from artifacts.task import FAMILIES, TaskRef  # noqa: E402
from artifacts.trajectory import Provenance  # noqa: E402
from optimizer.arms import make_arm  # noqa: E402
from optimizer.evaluation.job import EvaluationJob  # noqa: E402
from optimizer.llm.prompt import PromptSettings  # noqa: E402
from optimizer.llm.protocol import LlmAnswer, LlmRequest  # noqa: E402
from optimizer.search.journal import Journal  # noqa: E402
from optimizer.search.plan import RunSettings  # noqa: E402
from optimizer.search.session import Session  # noqa: E402
from optimizer.search.settings import SearchSettings  # noqa: E402
from optimizer.search.situation import Target  # noqa: E402
from optimizer.selection import SelectionSettings  # noqa: E402
from optimizer.tasks import load_tasks  # noqa: E402

NOTHING = Effect(mean=0.0, low=-1.0, high=1.0, n=0, effective_n=0.0, failures=0)
DIRECTIONS = [f"direction_{number}" for number in range(12)]
FEATURES = [f"feature_{number}" for number in range(60)]
GOAL_MS = 50.0
REFERENCE = "import torch\n\ndef forward(x):\n    return torch.softmax(x, -1)  # {}\n"
KERNEL = "__global__ void own(float* y) {{ }}  // {}\n" + "// a line of a kernel of ordinary length\n" * 150


def memory_of(count: int) -> Memory:
    """A memory of ``count`` made-up transitions in 12 directions and 120 strategies; one in 20 has a kernel to show."""
    draw = random.Random(1)
    directions = tuple(Direction(direction_id=name, name=name, description=name, effect=NOTHING) for name in DIRECTIONS)
    strategies = tuple(
        Strategy(
            strategy_id=f"{name}.{number}",
            direction_id=name,
            name=f"{name} {number}",
            intent="use it",
            when=(),
            recipe="do it",
            template="",
            effect=NOTHING,
            risks=(),
            evidence=(),
        )
        for name in DIRECTIONS
        for number in range(10)
    )
    rows = transition_rows([_transition(number, draw) for number in range(count)])
    return refreshed(
        Memory(manifest=Manifest(name="made-up"), directions=directions, strategies=strategies, table=rows)
    )


def _transition(number: int, draw: random.Random) -> Transition:
    family, direction = draw.choice(FAMILIES), draw.choice(DIRECTIONS)
    reward = draw.gauss(0, 1)
    state = State(
        family=family,
        arch="sm_90",
        language=Language.CUDA,
        bottleneck=draw.choice(list(Bottleneck)),
        fraction_of_bound=draw.random(),
        log2_speedup=draw.gauss(0, 1),
        runtime_us=draw.uniform(10, 1000),
        last_outcome=Outcome.CORRECT,
        step=number % 6,
        features=frozenset(draw.sample(FEATURES, 8)),
        history=tuple(draw.choices(DIRECTIONS, k=number % 4)),
    )
    return Transition(
        transition_id=f"t{number}",
        source=f"log_{number % 5}",
        trajectory_id=f"r{number // 6}",
        task=TaskRef(task_id=f"suite/1/{family}_{number % 500}", suite="suite", family=family, level=1),
        device="NVIDIA H100",
        llm="model",
        state=state,
        direction_id=direction,
        strategy_id=f"{direction}.{number % 10}",
        plan="do it",
        outcome=Outcome.CORRECT,
        reward=reward,
        expected=None,
        weight=1.0,
        flags=frozenset(),
        siblings=f"p{number // 2}",
        parent_sha256=f"{number // 2:064x}",
        child_sha256=f"{number:064x}",
        parent_us=100.0,
        child_us=100.0 / 2**reward,
        error="",
        choice_probability=None,
        provenance=Provenance(format="native", importer_version=1, file="a", file_sha256="0" * 64),
        kernel=KERNEL.format(number) if number % 20 == 0 else "",
        reference=REFERENCE.format(number % 500) if number % 20 == 0 else "",
    )


class InstantModel:
    """Answers at once with a new file of ordinary length."""

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Return a file that names the request."""
        body = "\n".join(f"# line {number} of a kernel of ordinary length" for number in range(150))
        code = f"import torch\nTAG = {request.key!r}\n{body}\n\nclass ModelNew(torch.nn.Module):\n    pass"
        return LlmAnswer(text=f"PLAN: try it\n```python\n{code}\n```", model="instant")

    async def close(self) -> None:
        """Nothing to close."""


class InstantBench:
    """Measures at once, each candidate a little faster than the last."""

    def __init__(self) -> None:
        self._us = 100.0

    async def measure(self, job: EvaluationJob) -> Measurement:
        """Return a made-up measurement."""
        before, self._us = self._us, self._us * 0.999
        timing = Timing(median_us=self._us, low_us=self._us, high_us=self._us)
        return Measurement(
            outcome=Outcome.CORRECT,
            stage="timing",
            device="NVIDIA H100",
            timing=timing,
            baselines={"eager": Timing(median_us=100.0, low_us=100.0, high_us=100.0)},
            incumbent=Timing(median_us=before, low_us=before, high_us=before) if job.incumbent_source else None,
            faster_than_incumbent=True if job.incumbent_source else None,
            profile=Profile(evidence=EvidenceLevel.COUNTED, bound_us=1.0, fraction_of_bound=1 / self._us),
        )


def step_times(arm_name: str, memory: Memory | None, steps: int) -> tuple[list[float], list[float]]:
    """Wall and processor milliseconds of each step of one run of one task; the first warms caches and is left out."""
    (task,) = load_tasks([REPOSITORY / "examples" / "tasks" / "cuda" / "row_softmax.py"])
    arm = make_arm(arm_name, memory, SelectionSettings())
    settings = RunSettings(
        run="bench",
        seed=1,
        backend="cuda",
        target=Target(arch="sm_90", language=Language.CUDA),
        search=replace(SearchSettings(), steps=steps),
        prompt=PromptSettings(model="instant", language=Language.CUDA, device="NVIDIA H100"),
    )
    with tempfile.TemporaryDirectory() as folder:
        marks: list[tuple[float, float]] = []

        def mark(event: Event) -> None:
            if event.kind == "step":
                marks.append((time.perf_counter(), time.process_time()))

        log = RunLog.create(Path(folder) / "run", {})
        journal = Journal(log, mark)
        session = Session([task], arm, settings, journal, llm=InstantModel(), bench=InstantBench())
        asyncio.run(session.advance())
        log.close()
    pairs = list(itertools.pairwise(marks))
    wall, processor = ([1000 * (after[clock] - before[clock]) for before, after in pairs] for clock in (0, 1))
    return wall, processor


def main() -> None:
    """Measure, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--arms", nargs="+", default=["feedback", "htam", "flat"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'arm':<10} {'transitions':>12} {'median ms':>10} {'p95 ms':>8} {'cpu ms':>8}   goal {GOAL_MS:g} ms a step")
    for count in options.transitions:
        memory = memory_of(count)
        for arm in options.arms:
            times, processor = step_times(arm, None if arm == "feedback" else memory, options.steps)
            row = {
                "arm": arm,
                "transitions": 0 if arm == "feedback" else count,
                "median_ms": round(statistics.median(times), 2),
                "p95_ms": round(statistics.quantiles(times, n=20)[-1], 2),
                "cpu_ms": round(statistics.median(processor), 2),
            }
            rows.append(row)
            print(
                f"{arm:<10} {row['transitions']:>12,} {row['median_ms']:>10} {row['p95_ms']:>8} {row['cpu_ms']:>8}",
                flush=True,
            )
    if options.out is not None:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=REPOSITORY
        )
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "load": os.getloadavg()[0]}
        data = {"commit": commit.stdout.strip(), "machine": machine, "steps": options.steps, "rows": rows}
        options.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
