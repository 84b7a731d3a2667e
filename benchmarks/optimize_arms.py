"""Two arms on the same tasks, step by step: ``python benchmarks/optimize_arms.py FIRST SECOND --out NAME …``.

Reads two run directories and writes benchmarks/results/NAME.json: the speedup over eager (of the same measurement) of
the best correct candidate after each step and of the winners that paired tests chose, the ratio of the arms paired
over tasks with its bootstrap interval, what failed, and what was spent.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from pipeline.report.figures import pair, summarise  # noqa: E402
from pipeline.report.run_reading import read_run  # noqa: E402
from pipeline.report.run_view import RunView, TaskView  # noqa: E402


def main() -> None:
    """Print both arms and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--out", required=True, help="name of the result file, without ending")
    parser.add_argument("--measured-at", required=True, help="commit whose evaluation measured")
    parser.add_argument("--device", required=True, help="device, driver and versions")
    parser.add_argument("--baseline", default="eager")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME=TASK,…", help="these tasks on their own too"
    )
    options = parser.parse_args()
    runs = [read_run(options.first), read_run(options.second)]
    figures: dict[str, Any] = {
        "measured_at_commit": options.measured_at,
        "device": options.device,
        "settings": {name: runs[0].facts[name] for name in sorted(runs[0].facts) if not name.startswith("tasks")},
        "baseline": options.baseline,
        "arms": {run.arm: arm(run, options.baseline) for run in runs},
        **paired(runs, options.baseline, frozenset()),
    }
    named = dict(group.split("=") for group in options.group)
    figures["groups"] = {name: paired(runs, options.baseline, frozenset(named[name].split(","))) for name in named}
    write_results(options.out, figures)


def paired(runs: list[RunView], baseline: str, wanted: frozenset[str]) -> dict[str, Any]:
    """Both arms after each step and at the end, over the tasks named in ``wanted``, or over all when it is empty."""

    def kept(reached: list[dict[str, float | None]]) -> list[dict[str, float | None]]:
        return [{k: v for k, v in found.items() if not wanted or k.rsplit("/", 1)[-1] in wanted} for found in reached]

    if wanted:
        print(f"{len(wanted)} tasks: {', '.join(sorted(wanted))}")
    return {
        "paired": [
            {"steps": number, **compared(runs, kept(after(runs, number, baseline)), f"after {number} steps")}
            for number in range(1, longest(runs) + 1)
        ],
        "winners": compared(runs, kept([run.speedups(baseline) for run in runs]), "winners"),
    }


def arm(run: RunView, baseline: str) -> dict[str, Any]:
    """What one run tried, reached and spent."""
    tried = [item for task in run.tasks for item in task.steps]
    outcomes = [item.measurement.outcome.value for item in tried]
    return {
        "memory": run.memory,
        "candidates": len(tried),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "steps_with_memory": sum(not item.gate and bool(item.direction) for item in tried),
        "tasks": {task.ref.task_id: rows(task, baseline) for task in run.tasks},
        "cost": asdict(run.cost),
    }


def rows(task: TaskView, baseline: str) -> list[dict[str, Any]]:
    """One row a step: outcome, time, speedup of this candidate."""
    return [
        {
            "outcome": item.measurement.outcome.value,
            "direction": item.direction,
            "median_us": item.measurement.timing.median_us if item.measurement.timing else None,
            "speedup": item.measurement.speedup(baseline) if item.correct else None,
        }
        for item in task.steps
    ]


def best_after(task: TaskView, steps: int, baseline: str) -> float | None:
    """Highest speedup among the first ``steps`` candidates that are correct; None without one."""
    reached = [item.measurement.speedup(baseline) for item in task.steps[:steps] if item.correct]
    return max((value for value in reached if value is not None), default=None)


def longest(runs: list[RunView]) -> int:
    """Steps of the longest task."""
    return max(len(task.steps) for run in runs for task in run.tasks)


def after(runs: list[RunView], number: int, baseline: str) -> list[dict[str, float | None]]:
    """For each run the best of every task after ``number`` steps."""
    return [{task.ref.task_id: best_after(task, number, baseline) for task in run.tasks} for run in runs]


def compared(runs: list[RunView], reached: list[dict[str, float | None]], title: str) -> dict[str, Any]:
    """Means of both arms over tasks and their paired ratio; printed too."""
    means = {run.arm: asdict(summarise(list(values.values()))) for run, values in zip(runs, reached, strict=True)}
    both = pair(reached[0], reached[1])
    if both is None:
        raise SystemExit("the runs share no task")
    shown = "  ".join(
        f"{name} {item['over_all']:.3f}x ({item['correct']}/{item['tasks']})" for name, item in means.items()
    )
    print(
        f"{title}: {shown}  {runs[0].arm}/{runs[1].arm} {both.ratio:.3f} [{both.low or 0:.3f}, "
        f"{both.high or 0:.3f}], {both.wins} wins {both.ties} ties {len(both.losses)} losses"
    )
    return {"over_baseline": means, "ratio": asdict(both)}


if __name__ == "__main__":
    main()
