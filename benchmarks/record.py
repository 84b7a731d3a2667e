"""The searched result on KernelBench: its tasks, drawn by a seed, its runs, and the prompts of their first steps.

    python -P benchmarks/record.py draw CHECKOUT
    python -P benchmarks/record.py open CHECKOUT FOLDER
    python -P benchmarks/record.py first FOLDER/RUN REQUESTS.jsonl

``draw`` writes ``record_plan.json``, ``open`` makes the runs of the plan (every arm, both classes), and ``first``
writes what a run asks in its first step. Such a prompt holds nothing that was measured, so that answers can be drawn
before there is a device; the run itself asks with the same keys, and ``htam tell`` takes the same answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from optimizer.llm.files import write_requests
from optimizer.llm.protocol import LlmRequest
from optimizer.prompting.request import build_request
from optimizer.run.opening import OpenRun
from optimizer.search.propose import propose
from optimizer.search.task_search import TaskSearch
from optimizer.search.write import prompt_context

PLAN = Path(__file__).with_name("record_plan.json")
COUNTS = {1: 20, 2: 20, 3: 8}
SEED = 17
STEPS = 3
ARMS = ("htam", "feedback", "shuffled")
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


def numbers_of(checkout: Path, level: int) -> dict[int, str]:
    """Number → name of the tasks of a level."""
    paths = (checkout / "KernelBench" / f"level{level}").glob("*_*.py")
    return {int(match[1]): path.stem for path in paths if (match := re.match(r"(\d+)_", path.name))}


def drawn(checkout: Path) -> list[dict[str, str]]:
    """Tasks in the order drawn; classes take turns, and what comes after the first ``COUNTS`` is the reserve."""
    tasks = []
    for level, count in COUNTS.items():
        names = numbers_of(checkout, level)
        able = sorted(names.keys() - EXCLUDED[level].keys())
        order = random.Random(f"{SEED}/{level}").sample(able, 2 * count)
        for place, number in enumerate(order):
            use = "drawn" if place < count else "reserve"
            tasks.append({"task": f"level{level}/{names[number]}", "class": CLASSES[place % 2], "use": use})
    return tasks


def open_runs(checkout: Path, folder: Path) -> None:
    """Make the runs of the plan; each waits for measurements of its references."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    for kind in CLASSES:
        chosen = [row for row in plan["tasks"] if row["use"] == "drawn" and row["class"] == kind]
        files = [str(checkout / "KernelBench" / f"{row['task']}.py") for row in chosen]
        precision = ["--dtype", "bfloat16"] if kind == "bf16" else ["--precision", "strict"]
        for arm in ARMS:
            shown = [] if arm == "feedback" else ["--leave-out", "task"]
            steps = ["--steps", str(1 if arm == "shuffled" else STEPS), "--fixed-steps"]
            where = ["--backend", "cuda", "--device", "NVIDIA H200", "--llm", "files", "--evaluator", "files"]
            words = [*files, "--run", str(folder / f"{arm}-{kind}"), "--arm", arm, *shown, *precision, *steps, *where]
            memory = [] if arm == "feedback" else ["--memory", "shipped"]
            subprocess.run([sys.executable, "-P", "-m", "pipeline", "optimize", *words, *memory], check=False)


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


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "open", "first"])
    parser.add_argument("paths", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "draw":
        plan = {"seed": SEED, "excluded": EXCLUDED, "tasks": drawn(arguments.paths[0])}
        PLAN.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    elif arguments.what == "open":
        open_runs(*arguments.paths)
    else:
        print(asyncio.run(first_requests(*arguments.paths)), "prompts")


if __name__ == "__main__":
    main()
