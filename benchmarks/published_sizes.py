"""Every task of KernelBench as published, with its own reference as the candidate: does it fit, in how much memory?

    python -P benchmarks/published_sizes.py CHECKOUT [--levels 1,2,3] [--seeds N] [--limit-s S] [--skip-done FILE]

Guards are off, since a reference is no kernel of its own. One JSON line a task is flushed as it comes, so that a run
that meets its limit goes on later with ``--skip-done`` and what it wrote; ``published-sizes.json`` holds the rows of
both, each with its commit. Needs torch, numpy and the standard library.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from published_tasks import Results, Task, tasks_of, within  # noqa: E402 - a bare host has the checkout only
from runner import host, write_results  # noqa: E402

from artifacts.measurement import Measurement  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings  # noqa: E402

_GIB = 1 << 30


def job_of(task: Task, backend: str, seeds: int) -> EvaluationJob:
    """The reference under the candidate's name."""
    return EvaluationJob(
        job_id=task.name,
        task_id=task.name,
        task_source=task.source,
        candidate_source=f"{task.source}\n\nModelNew = Model\n",
        backend=backend,
        seed=int.from_bytes(os.urandom(6), "big"),
        settings=EvaluationSettings(seeds=seeds, run_timeout_s=60.0, baselines=()),
    )


def row_of(name: str, commit: str, found: Measurement, stages: dict[str, float]) -> dict[str, Any]:
    """One line of the table."""
    return {
        "task": name,
        "commit": commit,
        "checks": len(found.checks),
        "outcome": found.outcome.value,
        "stage": found.stage,
        "error": found.error[:400],
        "verifier_gib": round(found.peak_bytes.get("verifier", 0) / _GIB, 2),
        "sandbox_gib": round(found.peak_bytes.get("sandbox", 0) / _GIB, 2),
        "gpu_s": round(found.gpu_s, 2),
        "median_us": found.timing.median_us if found.timing else None,
        "reference_us": found.reference.median_us if found.reference else None,
        "doubts": [doubt.kind.value for doubt in found.doubts],
        "notes": list(found.notes),
        "stages_s": stages,
    }


def run(options: argparse.Namespace, results: Results) -> None:
    """Evaluate what is not done yet, until the limit."""
    commit, done = host()["commit"], {row["task"] for row in earlier(options.skip_done)}
    levels = [int(level) for level in options.levels.split(",")]
    tasks = [task for task in tasks_of(options.checkout, levels) if re.search(options.match, task.name)]
    jobs = [job_of(task, options.backend, options.seeds) for task in tasks if task.name not in done]
    print(f"{len(jobs)} of {len(tasks)} tasks to do", flush=True)
    with tempfile.TemporaryDirectory(prefix="htam-cache-") as cache:
        evaluator = LocalEvaluator(0, LocalSettings(cache=Path(cache), concurrent=options.concurrent), guards=False)
        try:
            with within(options.limit_s):
                for name, found in evaluator.evaluate(jobs):
                    results.add(row_of(name, commit, found, dict(evaluator.seconds.get(name, {}))))
        except TimeoutError:
            print("met the limit", flush=True)
        finally:
            evaluator.close()


def earlier(path: Path | None) -> list[dict[str, Any]]:
    """Rows of earlier runs: JSON lines, or the result file of all."""
    if path is None:
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return list(json.loads(text)["rows"])
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def show(row: dict[str, Any]) -> str:
    """One line for people."""
    memory = f"{row['verifier_gib']:6.1f} {row['sandbox_gib']:6.1f} GiB"
    return (
        f"{row['at_s']:6.1f} {row['task']:56} {row['outcome']:14} {memory} {row['gpu_s']:6.1f} s  {row['error'][:160]}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--match", default="", metavar="REGEX", help="only tasks with it in their names")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seeds", type=int, default=EvaluationSettings().seeds, help="plain trials of a task")
    parser.add_argument("--concurrent", type=int, default=0, help="evaluations at a time; by cores when 0")
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--skip-done", type=Path, help="JSON lines of an earlier run, or published-sizes.json")
    folder = Path(os.environ.get("OUT", ROOT / "benchmarks" / "results"))
    parser.add_argument("--out", type=Path, default=folder / "published-sizes.jsonl")
    options = parser.parse_args()
    results = Results(options.out, show)
    run(options, results)
    rows = sorted([*earlier(options.skip_done), *results.rows], key=lambda row: row["task"])
    outcomes = Counter(row["outcome"] for row in rows)
    most = {side: max((row[f"{side}_gib"] for row in rows), default=0.0) for side in ("verifier", "sandbox")}
    print(f"{dict(outcomes)}; peaks, each at its own time, of at most {most} GiB; {apart(rows)}")
    write_results("published-sizes", {"outcomes": dict(outcomes), "most_gib": most, "apart": apart(rows), "rows": rows})


def apart(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How far two processes' times of the same code lie apart: the candidate's and the reference's."""
    found = [abs(row["median_us"] / row["reference_us"] - 1) for row in rows if row["median_us"]]
    return {
        "tasks": len(found),
        "median": statistics.median(found) if found else math.nan,
        "above 1 %": sum(each > 0.01 for each in found),
        "above 10 %": sum(each > 0.1 for each in found),
    }


if __name__ == "__main__":
    main()
