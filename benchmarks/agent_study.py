"""A study of what recall gives a coding agent: operators × {memory, none, shuffled}, equal numbers of evaluations.

``make`` writes a folder a session, with one task and one instruction that is the same for all; which session has
which memory stands in ``plan.json`` above them. An agent works in each with ``agent_tools.py``. ``finish`` measures the
winners again where the agent did not; ``table`` reads the logs, pairs by operator and resamples over operators;
``retime`` times every winner alone, for a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from agent_tools import called

from artifacts.errors import HtamError
from artifacts.measurement import Measurement
from artifacts.runlog import RunLog
from artifacts.statistics import Interval, mean_interval
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.local import LocalEvaluator
from pipeline.report.run_view import TaskView, read_run

ARMS = ("memory", "none", "shuffled")
TRIES = 3
"""Times that a winner is timed again at most while its timing is in doubt."""
PAIRS = (("memory", "none"), ("memory", "shuffled"), ("shuffled", "none"))
INSTRUCTION = """\
# Your task

`{task}` defines an operator in PyTorch (`Model`, `get_inputs`, `get_init_inputs`). Write a Python file that defines
`ModelNew`, which computes the same with kernels of your own ({language}, loaded with
`torch.utils.cpp_extension.load_inline`), as fast as you can. Your tools, called from a shell:

    {python} {tools} {session} tools
    {python} {tools} {session} recall '{{"task": "{task}"}}'
    {python} {tools} {session} kernel '{{"sha256": "..."}}'
    {python} {tools} {session} evaluate '{{"task": "{task}", "candidate": "kernel.py", "plan": "what it does and why"}}'
    {python} {tools} {session} finish '{{"task": "{task}"}}'

1. Call `recall` once before you write, and again after a candidate failed or when you are stuck.
2. Write candidates into {session} and `evaluate` them. You have {evaluations} evaluations; use all of them, always
   going on from what was measured. Say in `plan` what you changed.
3. Call `finish` at the end.

Measure with these tools only, and read no other files than those in {session}. Work left to PyTorch operators, kept
results, clocks and threads that outlive a call are refused; OpenMP is fine.
"""


def make(options: argparse.Namespace) -> None:
    """Write the sessions of a study."""
    study = options.study.resolve()
    common = ["--memory", options.memory, "--store", str(Path(options.store).resolve()), *options.words]
    pairs = list(itertools.product(options.tasks, ARMS))
    draw = random.Random(options.seed)
    names = [f"s{number:03d}" for number in draw.sample(range(1000), len(pairs))]
    tools = Path(__file__).with_name("agent_tools.py").resolve()
    sessions = {}
    for name, (task, arm) in zip(names, pairs, strict=True):
        folder = study / "sessions" / name
        place = folder / task.resolve().parent.name / task.name
        place.parent.mkdir(parents=True)
        shutil.copy(task, place)
        seed = ["--seed", str(options.seed), "--evaluations", str(options.evaluations)]
        words = [*common, *seed, "--recall", arm]
        told = {"task": str(place.relative_to(folder)), "session": folder, "tools": tools, "language": options.language}
        told["python"] = sys.executable
        sessions[name] = {"operator": task.stem, "task": told["task"], "arm": arm, "words": words}
        (folder / "PROMPT.md").write_text(INSTRUCTION.format(**told, evaluations=options.evaluations), encoding="utf-8")
    plan = {"evaluations": options.evaluations, "seed": options.seed, "sessions": sessions}
    (study / "plan.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    print(f"{len(sessions)} sessions in {study / 'sessions'}: give each PROMPT.md to an agent of its own")


def finish(options: argparse.Namespace) -> None:
    """End the tasks that the agents left open."""
    for name, entry in json.loads((options.study / "plan.json").read_text())["sessions"].items():
        session = options.study / "sessions" / name
        found = view(options.study, name)
        if found is not None and found.status == "not finished":
            print(name, asyncio.run(called(session, "finish", {"task": entry["task"]}))[1])


def view(study: Path, name: str) -> TaskView | None:
    """What the log of a session says; None for one that was not begun."""
    runs = sorted((study / "runs" / name).glob("*/manifest.json"))
    try:
        return next((task for path in runs for task in read_run(path.parent).tasks), None)
    except HtamError:
        return None


def gain(task: TaskView | None) -> float:
    """log2 speedup over the fastest baseline; 0 without a correct candidate, for then one keeps PyTorch."""
    speedup = None if task is None else task.speedup()
    return 0.0 if speedup is None else math.log2(max(speedup, 1e-3))


def after_first(task: TaskView | None) -> float:
    """log2 speedup of the first candidate over the fastest baseline; 0 where it was not correct."""
    speedup = task.steps[0].measurement.speedup() if task is not None and task.steps else None
    return 0.0 if speedup is None else math.log2(max(speedup, 1e-3))


def table(options: argparse.Namespace) -> None:
    """Print and write the paired results."""
    plan = json.loads((options.study / "plan.json").read_text())
    views = {(e["operator"], e["arm"]): view(options.study, name) for name, e in plan["sessions"].items()}
    operators = sorted({operator for operator, _ in views})
    whole = [one for one in operators if all((task := views[one, arm]) is not None and task.steps for arm in ARMS)]
    print(f"{'operator':<28}" + "".join(f"{arm:>22}" for arm in ARMS))
    for operator in operators:
        print(f"{operator:<28}" + "".join(f"{_cell(views[operator, arm]):>22}" for arm in ARMS))
    result: dict[str, Any] = {"operators": whole, "evaluations": plan["evaluations"], "arms": {}, "pairs": {}}
    for arm in ARMS:
        result["arms"][arm] = _factor(mean_interval([gain(views[one, arm]) for one in whole]))
        found = [task.steps for (one, of), task in views.items() if of == arm and one in whole and task is not None]
        result["arms"][arm] |= {
            "candidates": sum(map(len, found)),
            "correct": sum(step.correct for steps in found for step in steps),
            "with_a_correct_one": sum(any(step.correct for step in steps) for steps in found),
        }
    for one, other in PAIRS:
        for when, figure in (("", gain), (" after the first", after_first)):
            paired = [figure(views[operator, one]) - figure(views[operator, other]) for operator in whole]
            result["pairs"][f"{one}|{other}{when}"] = _factor(mean_interval(paired))
    for what in ("arms", "pairs"):
        for name, figures in result[what].items():
            counts = f"  {figures['correct']} of {figures['candidates']} correct" if what == "arms" else ""
            print(f"{name:<32} {figures['ratio']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]{counts}")
    print(f"geometric means over {len(whole)} operators with all three sessions; no correct candidate counts as 1")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def retime(options: argparse.Namespace) -> None:
    """Time every winner alone beside its baseline, and print the ratios of arms operator by operator.

    Not in turns: three winners would make three pairs, whose ratios need not agree.
    """
    sessions = json.loads((options.study / "plan.json").read_text())["sessions"]
    kept = options.study / "retimed.json"  # a run that was stopped goes on
    ratios: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    evaluator = LocalEvaluator()
    for name, entry in sessions.items():
        found = view(options.study, name)
        if name not in ratios and found is not None and found.status != "not finished":
            task, source = _winner(options.study, name)
            ratio = _timed(evaluator, task, source, options.backend).speedup() if source else 1.0
            ratios[name] = ratio or 1.0
            kept.write_text(json.dumps(ratios), encoding="utf-8")
        print(f"{entry['operator']:<28} {entry['arm']:<10} {ratios.get(name, math.nan):.3f}", flush=True)
    evaluator.close()
    if len(ratios) < len(sessions):
        raise SystemExit(f"{len(sessions) - len(ratios)} sessions are not finished")
    gains = {(entry["operator"], entry["arm"]): math.log2(ratios[name]) for name, entry in sessions.items()}
    operators = sorted({operator for operator, _ in gains})
    result: dict[str, Any] = {"operators": {}, "pairs": {}}
    for one, other in PAIRS:
        gained = {operator: gains[operator, one] - gains[operator, other] for operator in operators}
        result["operators"][f"{one}|{other}"] = {operator: 2**log for operator, log in gained.items()}
        result["pairs"][f"{one}|{other}"] = _factor(mean_interval(list(gained.values())))
    for name, figures in result["pairs"].items():
        print(f"{name:<20} {figures['ratio']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]")
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _winner(study: Path, name: str) -> tuple[str, str]:
    """Sources of the task and of the best candidate of a session, which is empty without a correct one."""
    (path,) = [found.parent for found in (study / "runs" / name).glob("*/manifest.json")]
    log, task = RunLog.open(path), view(study, name)
    started = next(event.payload for event in log.events() if event.kind == "task_started")
    final = None if task is None else task.final
    return log.candidate(started["source_sha256"]), "" if final is None else log.candidate(final.sha256)


def _timed(evaluator: LocalEvaluator, task: str, candidate: str, backend: str) -> Measurement:
    """A winner once more; again where the timing is in doubt."""
    for _ in range(TRIES):
        job = EvaluationJob(
            job_id="retime",
            task_id="retime",
            task_source=task,
            candidate_source=candidate,
            backend=backend,
            seed=random.getrandbits(48),
        )
        measured = next(measurement for _, measurement in evaluator.evaluate([job]))
        if measured.timing is None:
            raise SystemExit(f"a winner failed when it was timed again: {measured.first_error}")
        if not measured.doubts:
            break
        print("  in doubt:", *(doubt.text for doubt in measured.doubts))
    return measured


def _cell(task: TaskView | None) -> str:
    if task is None:
        return "not begun"
    speedup = task.speedup()
    right = sum(step.correct for step in task.steps)
    head = "none correct" if speedup is None else f"{speedup:.2f}x"
    return f"{head}, {right}/{len(task.steps)}{'' if task.confirmed else ' open'}"


def _factor(interval: Interval) -> dict[str, float]:
    return {"ratio": 2**interval.value, "low": 2**interval.low, "high": 2**interval.high}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make")
    maker.add_argument("study", type=Path)
    maker.add_argument("tasks", nargs="+", type=Path)
    maker.add_argument("--memory", required=True)
    maker.add_argument("--store", default="memories")
    maker.add_argument("--evaluations", type=int, default=6)
    maker.add_argument("--seed", type=int, default=1)
    maker.add_argument("--language", default="C++ for the CPU", help="as the instruction says it")
    maker.add_argument("--words", nargs=argparse.REMAINDER, default=[], help="further options of htam mcp")
    maker.set_defaults(run=make)
    for name, run in (("finish", finish), ("table", table), ("retime", retime)):
        command = commands.add_parser(name)
        command.add_argument("study", type=Path)
        command.add_argument("--out", type=Path)
        command.add_argument("--backend", default="cpu")
        command.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
