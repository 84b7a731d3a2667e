"""Small runs with random gains, as logs for the soak."""

from __future__ import annotations

import random
from pathlib import Path

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.measurement import Measurement, Timing
from artifacts.outcome import Outcome
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.runlog import RunLog
from artifacts.state import State
from artifacts.task import TaskRef

PLANS = (
    "Use vectorized loads",
    "Tile in shared memory",
    "Fuse the epilogue",
    "Reduce by warp shuffles",
    "Unroll by four",
)


def write_run(path: Path, name: str, rng: random.Random) -> None:
    """A small run with random gains."""
    with RunLog.create(path, {"run_id": name}) as log:
        task = TaskRef(task_id=f"soak/1/{name}", suite="soak", family=rng.choice(["softmax", "matmul"]), level=1)
        reference = log.add_candidate(f"class Model: pass  # {name}\n")
        started = TaskStarted(task=task, source_sha256=reference, path="task.py")
        log.append("task_started", encode(started), key=task.task_id)
        parent = ""
        for index in range(4):
            plan = rng.choice(PLANS)
            sha256 = log.add_candidate(f"class ModelNew: pass  # {name} {index} {plan}\n")
            time_us = rng.uniform(50.0, 200.0)
            timing = Timing(median_us=time_us, low_us=time_us * 0.99, high_us=time_us * 1.01)
            step = LoggedStep(
                task_id=task.task_id,
                step_id=f"{index}.0",
                parent_id=f"{index - 1}.0" if index else None,
                index=index,
                mode="optimize" if index else "first",
                candidate_sha256=sha256,
                parent_sha256=parent,
                direction="",
                strategies=(),
                plan=f"{plan}.",
                state=State(family=task.family, arch="sm_90", language=Language.CUDA),
                measurement=Measurement(outcome=Outcome.CORRECT, stage="timing", device="h200", timing=timing),
            )
            log.append("step", encode(step), key=f"{task.task_id}/{step.step_id}")
            parent = sha256
