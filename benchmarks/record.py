"""The searched result on KernelBench: its tasks, drawn by a seed, its runs, and the prompts of their first steps.

    python -P benchmarks/record.py draw CHECKOUT
    python -P benchmarks/record.py open CHECKOUT FOLDER [EARLIER…] [--study record|memory|size|arms|triton]
    python -P benchmarks/record.py first FOLDER/RUN REQUESTS.jsonl
    python -P benchmarks/record.py table FOLDER…
    python -P benchmarks/record.py winners FOLDER

``draw`` writes ``record_plan.json``, ``open`` makes the runs of the plan (every arm of the study, both classes; the
studies of memory and of arms take the first of its tasks and share its runs, see docs/results; of tasks that runs in
EARLIER folders do not hold, as those that replace refused ones), and ``first`` writes what a run asks in its first
step. Such a prompt holds nothing that was measured, so that answers can be drawn before there is a device; the run
itself asks with the same keys, and ``htam tell`` takes the same answers. ``table`` says of the runs in a folder what
the protocol of the study asks (docs/results), as far as they got. ``winners`` writes the fastest candidates of
``htam``, from the recorded answers, in a folder for each class as KernelBench names them.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
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
from runner import REPOSITORY, write_results  # noqa: E402

from artifacts.measurement import FASTEST  # noqa: E402
from artifacts.memory.shipped import SHIPPED, load_memory  # noqa: E402
from artifacts.memory.store import MemoryStore  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.applicability import NO_PRODUCTS  # noqa: E402
from optimizer.llm.files import write_requests  # noqa: E402
from optimizer.llm.protocol import LlmAnswer, LlmRequest  # noqa: E402
from optimizer.prompting.answer import parse_answer  # noqa: E402
from optimizer.prompting.request import build_request  # noqa: E402
from optimizer.run.opening import OpenRun  # noqa: E402
from optimizer.search.propose import propose  # noqa: E402
from optimizer.search.task_search import TaskSearch  # noqa: E402
from optimizer.search.write import prompt_context  # noqa: E402
from pipeline.report.figures import pair, summarise  # noqa: E402
from pipeline.report.run_view import TaskView, read_run  # noqa: E402

PLAN = Path(__file__).with_name("record_plan.json")
ANSWERS = Path(__file__).with_name("record_answers.jsonl.gz")
COUNTS = {1: 20, 2: 20, 3: 8}
SEED = 17
STEPS = 3
ARMS = ("htam", "feedback", "shuffled")


class Study(NamedTuple):
    """Runs beside those of others.

    Attributes:
        arms: whose runs it opens, for so many ``steps``; ``ARM@STEPS`` has a memory of so many of the device's steps,
            ``ARM@triton`` writes Triton.
        pairs: arms whose best are told over another's, after so many calls of the model.
        each: tasks of each class of levels 1 and 2; all that are drawn when None.
    """

    arms: tuple[str, ...]
    steps: int
    pairs: tuple[tuple[str, str, int], ...]
    each: int | None = None


class Searched(NamedTuple):
    """A task of a run, and how many calls of the model it had taken when each of its candidates was there.

    Questions to planners and judges are calls; ``taken`` counts those as well that no candidate has followed yet.
    """

    task: TaskView
    calls: tuple[int, ...]
    taken: int


def over(arms: Iterable[str], other: str, calls: int) -> tuple[tuple[str, str, int], ...]:
    """Each arm over another one, after each call."""
    return tuple((arm, other, call) for arm in arms for call in range(1, calls + 1))


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
    "arms": Study(("feedback", "htam", *_OTHERS), 6, over(("htam", *_OTHERS), "feedback", 6), 2),
    "triton": Study(("feedback@triton",), 2, over(["feedback@triton"], "feedback", 2), 2),
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
    held = {name: {place(each.task.ref.task_id) for each in tasks} for name, tasks in runs_in(earlier).items()}
    for kind, arm in itertools.product(CLASSES, study.arms):
        names = [name for name in tasks_of(study, kind) if place(name) not in held.get(f"{arm}-{kind}", ())]
        files = [str(checkout / "KernelBench" / f"{name}.py") for name in names]
        precision = ["--dtype", "bfloat16"] if kind == "bf16" else ["--precision", "strict"]
        if files:
            name, _, variant = arm.partition("@")
            steps = ["--steps", str(1 if arm == "shuffled" else study.steps), "--fixed-steps"]
            where = ["--backend", "cuda", "--device", "NVIDIA H200", "--llm", "files", "--evaluator", "files"]
            words = [*files, "--run", str(folder / f"{arm}-{kind}"), "--arm", name, *precision, *steps, *where]
            words += ["--profile"] if arm == "hardware-feedback" else []
            words += ["--language", variant] if variant == "triton" else []
            if name in WITH_MEMORY:
                store = str(folder / "memories")
                memory = thinned(store, int(variant)) if variant else "shipped"
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


def runs_in(folders: Iterable[Path]) -> dict[str, list[Searched]]:
    """Name of a run (``ARM-CLASS``) → its tasks, in all folders together."""
    runs: dict[str, list[Searched]] = {}
    for path in sorted((path for folder in folders for path in folder.iterdir()), key=lambda path: path.name):
        if RunLog.is_run(path):
            keys = [event.key for event in RunLog.open(path).events() if event.kind == "answer"]
            runs.setdefault(path.name, []).extend(searched(task, keys) for task in read_run(path).tasks)
    return runs


def searched(task: TaskView, keys: Iterable[str]) -> Searched:
    """A task with its calls, from the keys ``TASK/STEP.NUMBER[/ROLE]`` of a run's answers."""
    prefix = f"{task.ref.task_id}/"
    asked = [int(key.removeprefix(prefix).partition(".")[0]) for key in keys if key.startswith(prefix)]
    return Searched(task, tuple(sum(at <= step.step for at in asked) for step in task.steps), len(asked))


def table(folders: Sequence[Path], study: Study) -> dict[str, Any]:
    """What the runs in ``folders`` say: figures of each arm after each call, and arms over others."""
    chosen = {place(name) for kind in CLASSES for name in tasks_of(study, kind)}
    runs = {
        name: [each for each in tasks if place(each.task.ref.task_id) in chosen]
        for name, tasks in runs_in(folders).items()
    }
    found: dict[str, Any] = {"arms": {}, "pairs": {}, "tasks": {}}
    for name, own in runs.items():
        found["tasks"] |= {f"{each.task.ref.task_id}, {name}": of_task(each) for each in own if each.calls}
    for arm, names in itertools.groupby(runs, lambda name: name.rpartition("-")[0]):
        parts = {name.rpartition("-")[2]: runs[name] for name in names}
        everything = [each for own in parts.values() for each in own]
        for level in sorted({each.task.ref.level for each in everything if each.task.ref.level}):
            parts[f"level {level}"] = [each for each in everything if each.task.ref.level == level]
        for (part, own), calls in itertools.product(({"all": everything} | parts).items(), range(1, study.steps + 1)):
            came = [each for each in own if each.taken >= calls]
            if came:
                installed = summarise([best_after(each, calls, "eager") for each in came]).over_all
                row = asdict(summarise([best_after(each, calls) for each in came]))
                found["arms"][f"{arm}, {part}, calls {calls}"] = row | {"over_eager": installed}
    for (name, other, calls), products in itertools.product(study.pairs, (True, False)):
        first, second = (best_of(runs, arm, calls, products=products) for arm in (name, other))
        compared = pair(first, second)
        kind = "with products" if products else "without"
        found["pairs"][f"{name} over {other}, calls {calls}, {kind}"] = compared and asdict(compared)
    return found


def of_task(each: Searched) -> dict[str, Any]:
    """Best speedup over the fastest baseline, and over PyTorch as installed, at each candidate; what became of them."""
    steps = each.task.steps
    return {
        "family": each.task.ref.family,
        "calls": each.calls,
        "best": [best_after(each, calls) for calls in each.calls],
        "over_eager": [best_after(each, calls, "eager") for calls in each.calls],
        "outcomes": [step.measurement.outcome for step in steps],
        "doubts": sorted({doubt.kind for step in steps for doubt in step.measurement.doubts}),
    }


def place(name: str) -> tuple[str, ...]:
    """Level and number of a task, from its path in the plan or the name that a run gives it."""
    found = re.search(r"(\d)/(\d+)_", name)
    return found.groups() if found else ()


def best_of(runs: Mapping[str, list[Searched]], arm: str, calls: int, *, products: bool) -> dict[str, float | None]:
    """Task → best speedup of an arm, for operators with products or without, of those that came so far."""
    return {
        f"{kind}/{each.task.ref.task_id}": best_after(each, calls)
        for kind in CLASSES
        for each in runs.get(f"{arm}-{kind}", ())
        if (each.task.ref.family not in NO_PRODUCTS) is products and each.taken >= calls
    }


def best_after(each: Searched, calls: int, baseline: str = FASTEST) -> float | None:
    """Speedup over a baseline of the best candidate of the first ``calls``; None while none is correct."""
    known = zip(each.task.steps, each.calls, strict=True)
    ratios = [step.measurement.speedup(baseline) for step, taken in known if taken <= calls and step.correct]
    return max((ratio for ratio in ratios if ratio), default=None)


def write_winners(folder: Path) -> int:
    """Write the fastest correct candidate that the result file knows of each task with ``htam``; return how many."""
    found = json.loads((REPOSITORY / "benchmarks" / "results" / "record.json").read_text(encoding="utf-8"))["tasks"]
    texts: dict[tuple[str, ...], list[str]] = {}
    with gzip.open(ANSWERS, "rt", encoding="utf-8") as lines:
        for answer in map(json.loads, lines):
            if answer["arm"] == "htam":
                texts.setdefault((answer["class"], *place(answer["task"])), []).append(answer["text"])
    count = 0
    for kind, (name, row) in itertools.product(CLASSES, found.items()):
        best = max((ratio for ratio in row["best"] if ratio), default=None)
        if name.endswith(f", htam-{kind}") and best is not None:
            level, number = place(name)
            text = texts[kind, level, number][row["best"].index(best)]
            path = folder / kind / f"level_{level}_problem_{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(parse_answer(LlmAnswer(text=text, model="recorded")).candidate.source, encoding="utf-8")
            count += 1
    return count


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "open", "first", "table", "winners"])
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
    elif arguments.what == "winners":
        print(write_winners(arguments.paths[0]), "winners")
    else:
        print(asyncio.run(first_requests(*arguments.paths)), "prompts")


if __name__ == "__main__":
    main()
