"""Judge honest candidates on tasks of KernelBench and robust-kbench, read from checkouts, on a GPU.

    python -P benchmarks/suites_gpu.py CHECKOUT… [--out FILE] [--all]

Tasks without a candidate in ``benchmarks/suite_candidates.py`` are counted and left out. Large tasks (several GB)
are judged with ``--all`` only. Prints one line a task and writes JSON to FILE, ``$OUT/suites.json`` or
``benchmarks/results/suites.json``. Needs torch and the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from profile_gpu import machine  # noqa: E402 - a bare host has the checkout only
from suite_candidates import CANDIDATES  # noqa: E402

from artifacts.measurement import Measurement  # noqa: E402
from optimizer.evaluation.job import EvaluationJob  # noqa: E402
from optimizer.evaluation.local import LocalEvaluator, LocalSettings  # noqa: E402
from optimizer.tasks.load import load_tasks  # noqa: E402

LARGE = frozenset({"kernelbench/1/19_relu"})
"""Tasks with inputs of 6 GB."""


def row(measurement: Measurement, at_s: float, stages: dict[str, float]) -> dict[str, Any]:
    """One task's figures without raw samples."""
    return {
        "outcome": measurement.outcome.value,
        "error": measurement.error[:300],
        "at_s": round(at_s, 1),
        "gpu_s": round(measurement.gpu_s, 1),
        "median_us": measurement.timing.median_us if measurement.timing else None,
        "speedup": measurement.speedup(),
        "checks": list(measurement.checks),
        "findings": [finding.message for finding in measurement.findings],
        "notes": list(measurement.notes),
        "stages_s": stages,
    }


def run(checkouts: list[Path], *, everything: bool, match: str = "", devices: tuple[int, ...] = ()) -> dict[str, Any]:
    """Judge all tasks that have a candidate; prints as they come."""
    tasks = {task.ref.task_id: task for task in load_tasks(checkouts)}
    chosen = [name for name in tasks if name in CANDIDATES and match in name and (everything or name not in LARGE)]
    jobs = [
        EvaluationJob(
            job_id=name,
            task_id=name,
            task_source=tasks[name].source,
            candidate_source=CANDIDATES[name],
            backend="cuda",
            seed=int.from_bytes(os.urandom(6), "big"),
        )
        for name in chosen
    ]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="htam-cache-") as cache:
        evaluator = LocalEvaluator(0, LocalSettings(cache=Path(cache), devices=devices))
        start = time.monotonic()
        try:
            for name, found in evaluator.evaluate(jobs):
                rows[name] = row(found, time.monotonic() - start, dict(evaluator.seconds.get(name, {})))
                print(
                    f"{name:44} {found.outcome.value:14} {rows[name]['gpu_s']:6} s  {rows[name]['speedup']}", flush=True
                )
                print(f"    {found.error[:200]} {rows[name]['findings']} {rows[name]['notes']}", flush=True)
        finally:
            evaluator.close()
        seconds = time.monotonic() - start
    return {
        "host": machine(),
        "tasks_read": len(tasks),
        "judged": len(rows),
        "seconds": round(seconds, 1),
        "rows": rows,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--devices", type=int, nargs="*", default=[], help="CUDA device indices; all by default")
    parser.add_argument("--match", default="", help="only tasks with this in their names")
    folder = Path(os.environ.get("OUT", ROOT / "benchmarks" / "results"))
    parser.add_argument("--out", type=Path, default=folder / "suites.json")
    options = parser.parse_args()
    result = run(options.checkouts, everything=options.all, match=options.match, devices=tuple(options.devices))
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    correct = sum(found["outcome"] == "correct" for found in result["rows"].values())
    print(f"{correct} of {result['judged']} correct in {result['seconds']} s; written to {options.out.name}")


if __name__ == "__main__":
    main()
