"""The searched result on KernelBench: its tasks, drawn by a seed, its runs, and the prompts of their first steps.

    python -P benchmarks/record.py draw CHECKOUT
    python -P benchmarks/record.py open CHECKOUT FOLDER [EARLIER…] [--study record|memory|size|arms]
    python -P benchmarks/record.py first FOLDER/RUN REQUESTS.jsonl
    python -P benchmarks/record.py table FOLDER…

``draw`` writes ``record_plan.json``, ``open`` makes the runs of the plan (every arm of the study, both classes; the
studies of memory and of arms take the first of its tasks and share its runs, see docs/results; of tasks that runs in
EARLIER folders do not hold, as those that replace refused ones), and ``first`` writes
what a run asks in its first step. Such a prompt holds nothing that was measured, so that answers can be drawn before
there is a device; the run itself asks with the same keys, and ``htam tell`` takes the same answers. ``table`` says of
the runs in a folder what the protocol of the study asks (docs/results), as far as they got.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402 - the paths come first
from runner import write_results  # noqa: E402

from artifacts.measurement import FASTEST  # noqa: E402
from artifacts.memory.shipped import SHIPPED, load_memory  # noqa: E402
from artifacts.memory.store import MemoryStore  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.applicability import NO_PRODUCTS  # noqa: E402
from optimizer.llm.files import write_requests  # noqa: E402
from optimizer.llm.protocol import LlmRequest  # noqa: E402
from optimizer.prompting.request import build_request  # noqa: E402
from optimizer.run.opening import OpenRun  # noqa: E402
from optimizer.search.propose import propose  # noqa: E402
from optimizer.search.task_search import TaskSearch  # noqa: E402
from optimizer.search.write import prompt_context  # noqa: E402
from pipeline.report.figures import pair, summarise  # noqa: E402
from pipeline.report.run_view import TaskView, read_run  # noqa: E402

PLAN = Path(__file__).with_name("record_plan.json")
COUNTS = {1: 20, 2: 20, 3: 8}
SEED = 17
STEPS = 3
ARMS = ("htam", "feedback", "shuffled")


class Study(NamedTuple):
    """Runs beside those of others.

    Attributes:
        arms: whose runs it opens, for so many ``steps``.
        pairs: arms whose best are told over another's, after each of the steps.
        each: tasks of each class of levels 1 and 2; all that are drawn when None.
    """

    arms: tuple[str, ...]
    steps: int
    pairs: tuple[tuple[str, str, int], ...]
    each: int | None = None


def over(arms: Iterable[str], other: str, steps: int) -> tuple[tuple[str, str, int], ...]:
    """Each arm over another one, after each step."""
    return tuple((arm, other, step) for arm in arms for step in range(1, steps + 1))


_OTHERS = ("bandit", "world-model", "plan-code-debug", "hardware-feedback")
_PARTS = ("kernel-only", "experience-only")
_SIZES = ("experience-only@40", "experience-only@160")
STUDIES = {
    "record": Study(ARMS, STEPS, (*over(["htam"], "feedback", STEPS), ("htam", "shuffled", 1))),
    "memory": Study(
        _PARTS,
        STEPS,
        (
            *over((*_PARTS, "htam", "shuffled"), "feedback", STEPS),
            *over(["htam"], "shuffled", STEPS),
            *over(["htam"], "kernel-only", STEPS),
        ),
        4,
    ),
    "size": Study(_SIZES, 1, over((*_SIZES, "experience-only"), "feedback", 1), 4),
    "arms": Study(_OTHERS, 6, over(("htam", *_OTHERS), "feedback", 6), 2),
}
DEVICE = {"arch": "sm_90", "language": "cuda"}
"""Architecture and language of the record that ``ARM@STEPS`` has less of."""
WITH_MEMORY = ("htam", "shuffled", "kernel-only", "experience-only", "bandit")
CLASSES = ("strict", "bf16")
EXCLUDED: Mapping[int, Mapping[int, str]] = {
    1: {90: "not a number for inputs x 3", 98: "not a number for inputs x -1"},
    2: {
        23: "constant output",
        66: "draws random numbers: dropout",
        77: "float32 itself fails a strict oracle",
        80: "constant output",
        83: "constant output, and dropout",
    },
    3: {
        33: "state of random numbers",
        35: "draws random numbers: initial state",
        41: "state of random numbers",
    },
}
"""Level → number → defect, as KernelBench-Verified (arXiv 2607.16241, sections on exclusions and oracles) and the
sources of the tasks tell it."""


REFUSED: Mapping[str, str] = {
    "level1/92_cumsum_exclusive": "random, not finite, or decided by rounding errors",
    "level2/45_Gemm_Sigmoid_LogSumExp": "its mean would pass as output",
    "level3/24_EfficientNetB2": "random, not finite, or decided by rounding errors",
    "level3/45_UNetSoftmax": "its mean and zeros would pass as output",
}
"""Drawn tasks → what the evaluator said of their references in the task's class, on the device."""


def numbers_of(checkout: Path, level: int) -> dict[int, str]:
    """Number → name of the tasks of a level."""
    paths = (checkout / "KernelBench" / f"level{level}").glob("*_*.py")
    return {int(match[1]): path.stem for path in paths if (match := re.match(r"(\d+)_", path.name))}


def drawn(checkout: Path) -> list[dict[str, str]]:
    """Tasks in the order drawn; classes take turns, and what comes after the first ``COUNTS`` is the reserve.

    A refused task is replaced by the next of its level and class in the reserve.
    """
    tasks = []
    for level, count in COUNTS.items():
        names = numbers_of(checkout, level)
        able = sorted(names.keys() - EXCLUDED[level].keys())
        order = random.Random(f"{SEED}/{level}").sample(able, 2 * count)
        for place, number in enumerate(order):
            name, use = f"level{level}/{names[number]}", "drawn" if place < count else "reserve"
            tasks.append({"task": name, "class": CLASSES[place % 2], "use": "refused" if name in REFUSED else use})
        for kind in CLASSES:
            mine = [task for task in tasks if task["class"] == kind and task["task"].startswith(f"level{level}/")]
            reserve = (task for task in mine if task["use"] == "reserve")
            for _, task in zip([task for task in mine if task["use"] == "refused"], reserve, strict=False):
                task["use"] = "replacement"
    return tasks


def tasks_of(study: Study, kind: str) -> list[str]:
    """Tasks of a class that a study takes, in the order of the plan."""
    rows = json.loads(PLAN.read_text(encoding="utf-8"))["tasks"]
    names = [row["task"] for row in rows if row["use"] in ("drawn", "replacement") and row["class"] == kind]
    if study.each is None:
        return names
    levels = ([name for name in names if name.startswith(f"level{level}/")] for level in (1, 2))
    return [name for level in levels for name in level[: study.each]]


def open_runs(checkout: Path, folder: Path, study: Study, earlier: Sequence[Path]) -> None:
    """Make the runs of a study, of tasks that no earlier one holds; each waits for measurements of its references."""
    held = {name: {place(task.ref.task_id) for task in tasks} for name, tasks in runs_in(earlier).items()}
    for kind, arm in itertools.product(CLASSES, study.arms):
        names = [name for name in tasks_of(study, kind) if place(name) not in held.get(f"{arm}-{kind}", ())]
        files = [str(checkout / "KernelBench" / f"{name}.py") for name in names]
        precision = ["--dtype", "bfloat16"] if kind == "bf16" else ["--precision", "strict"]
        if files:
            name, _, size = arm.partition("@")
            steps = ["--steps", str(1 if arm == "shuffled" else study.steps), "--fixed-steps"]
            where = ["--backend", "cuda", "--device", "NVIDIA H200", "--llm", "files", "--evaluator", "files"]
            words = [*files, "--run", str(folder / f"{arm}-{kind}"), "--arm", name, *precision, *steps, *where]
            words += ["--profile"] if arm == "hardware-feedback" else []
            if name in WITH_MEMORY:
                store = str(folder / "memories")
                memory = thinned(store, int(size)) if size else "shipped"
                words += ["--memory", memory, "--store", store, "--leave-out", "task"]
            subprocess.run([sys.executable, "-P", "-m", "pipeline", "optimize", *words], check=False)


def thinned(store: str, steps: int) -> str:
    """Publish the shipped memory with so many steps of :data:`DEVICE` alone, drawn by the seed; return its name."""
    memory = load_memory(store, SHIPPED)
    keep = ~np.logical_and.reduce([memory.columns.categories[name].among([value]) for name, value in DEVICE.items()])
    own = np.flatnonzero(~keep).tolist()
    keep[random.Random(f"{SEED}/{steps}").sample(own, steps)] = True
    thin = memory.kept(keep)
    return MemoryStore(store).publish(replace(thin, manifest=replace(thin.manifest, name=f"own-{steps}"))).reference


async def first_requests(run_folder: Path, out: Path) -> int:
    """Write what the first step of a run asks; the run stays as it is. Return how many prompts there are."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / run_folder.name
        shutil.copytree(run_folder, copy)
        run = OpenRun.at(copy)
        try:
            asked = [await _first_of(search) for search in run.session().searches]
        finally:
            await run.close()
    return write_requests(out, asked)


async def _first_of(search: TaskSearch) -> LlmRequest:
    (proposal,) = await propose(search)
    return build_request(prompt_context(search, proposal), search.run.prompt)


def runs_in(folders: Iterable[Path]) -> dict[str, list[TaskView]]:
    """Name of a run (``ARM-CLASS``) → its tasks, in all folders together."""
    runs: dict[str, list[TaskView]] = {}
    for path in sorted((path for folder in folders for path in folder.iterdir()), key=lambda path: path.name):
        if RunLog.is_run(path):
            runs.setdefault(path.name, []).extend(read_run(path).tasks)
    return runs


def table(folders: Sequence[Path], study: Study) -> dict[str, Any]:
    """What the runs in ``folders`` say: figures of each arm after each step, and arms over others."""
    chosen = {place(name) for kind in CLASSES for name in tasks_of(study, kind)}
    runs = {
        name: [task for task in tasks if place(task.ref.task_id) in chosen] for name, tasks in runs_in(folders).items()
    }
    found: dict[str, Any] = {"arms": {}, "pairs": {}, "tasks": {}}
    for name, own in runs.items():
        found["tasks"] |= {f"{task.ref.task_id}, {name}": of_task(task, study.steps) for task in own if taken(task)}
    for arm, names in itertools.groupby(runs, lambda name: name.rpartition("-")[0]):
        parts = {name.rpartition("-")[2]: runs[name] for name in names}
        everything = [task for own in parts.values() for task in own]
        for level in sorted({task.ref.level for task in everything if task.ref.level}):
            parts[f"level {level}"] = [task for task in everything if task.ref.level == level]
        for (part, own), step in itertools.product(({"all": everything} | parts).items(), range(1, study.steps + 1)):
            came = [task for task in own if taken(task) >= step]
            if came:
                installed = summarise([best_after(task, step, "eager") for task in came]).over_all
                row = asdict(summarise([best_after(task, step) for task in came]))
                found["arms"][f"{arm}, {part}, step {step}"] = row | {"over_eager": installed}
    for (name, other, step), products in itertools.product(study.pairs, (True, False)):
        first, second = (best_of(runs, arm, step, products=products) for arm in (name, other))
        compared = pair(first, second)
        kind = "with products" if products else "without"
        found["pairs"][f"{name} over {other}, step {step}, {kind}"] = compared and asdict(compared)
    return found


def of_task(task: TaskView, steps: int) -> dict[str, Any]:
    """Best speedup over the fastest baseline and over PyTorch as installed, step by step; what became of candidates."""
    came = range(1, min(taken(task), steps) + 1)
    return {
        "family": task.ref.family,
        "best": [best_after(task, step) for step in came],
        "over_eager": [best_after(task, step, "eager") for step in came],
        "outcomes": [step.measurement.outcome for step in task.steps],
        "doubts": sorted({doubt.kind for step in task.steps for doubt in step.measurement.doubts}),
    }


def place(name: str) -> tuple[str, ...]:
    """Level and number of a task, from its path in the plan or the name that a run gives it."""
    found = re.search(r"(\d)/(\d+)_", name)
    return found.groups() if found else ()


def best_of(runs: Mapping[str, list[TaskView]], arm: str, step: int, *, products: bool) -> dict[str, float | None]:
    """Task → best speedup of an arm, for operators with products or without, of those that came so far."""
    return {
        f"{kind}/{task.ref.task_id}": best_after(task, step)
        for kind in CLASSES
        for task in runs.get(f"{arm}-{kind}", ())
        if (task.ref.family not in NO_PRODUCTS) is products and taken(task) >= step
    }


def taken(task: TaskView) -> int:
    """Steps that a search has taken; a task that has not come to a step says nothing of it."""
    return len({step.step for step in task.steps})


def best_after(task: TaskView, steps: int, baseline: str = FASTEST) -> float | None:
    """Speedup over a baseline of the best candidate so far; None while none is correct."""
    ratios = [step.measurement.speedup(baseline) for step in task.steps if step.step < steps and step.correct]
    return max((ratio for ratio in ratios if ratio), default=None)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "open", "first", "table"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--study", choices=STUDIES, default="record")
    arguments = parser.parse_args()
    if arguments.what == "draw":
        plan = {"seed": SEED, "excluded": EXCLUDED, "refused": REFUSED, "tasks": drawn(arguments.paths[0])}
        PLAN.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    elif arguments.what == "open":
        checkout, folder, *earlier = arguments.paths
        open_runs(checkout, folder, STUDIES[arguments.study], earlier)
    elif arguments.what == "table":
        figures = table(arguments.paths, STUDIES[arguments.study])
        for part in figures.values():
            for name, row in part.items():
                print(f"{name:40}", row and {key: value for key, value in row.items() if key != "losses"})
        write_results(arguments.study, figures)
    else:
        print(asyncio.run(first_requests(*arguments.paths)), "prompts")


if __name__ == "__main__":
    main()
