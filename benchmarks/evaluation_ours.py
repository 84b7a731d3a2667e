"""Our side of ``benchmarks/evaluation.py``: throughput with empty and full caches, latency."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from evaluation_candidates import BenchmarkCandidate, candidates, triton_of_size  # noqa: E402
from profile_candidates import CANDIDATES as PROFILED  # noqa: E402

from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402

CORRECTNESS_TRIALS = 5
TIMING_TRIALS = 100
"""Of both sides."""


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """All candidates through the worker's evaluator, empty cache."""
    cache = Path(arguments.scratch) / "ours"
    shutil.rmtree(cache, ignore_errors=True)
    return {"cold": evaluate_ours(candidates(), cache, arguments)}


def again(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same candidates once more with all libraries built, and how far the two times of each are apart."""
    second = evaluate_ours(candidates(), Path(arguments.scratch) / "ours", arguments)
    first = json.loads(Path(arguments.out).read_text(encoding="utf-8"))["ours"]["cold"]
    return {**second, "median_difference": difference(first["rows"], second["rows"])}


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Median over the candidates of how far their two times are apart."""
    pairs = [(row["median_us"], second[name]["median_us"]) for name, row in first.items()]
    return float(statistics.median(abs(one - other) / min(one, other) for one, other in pairs if one and other))


def evaluate_ours(chosen: list[BenchmarkCandidate], cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Verdicts, seconds and candidates per hour of our evaluator."""
    from optimizer.evaluation.local import LocalEvaluator, LocalSettings

    jobs = jobs_of(chosen)
    start = time.monotonic()
    evaluator = LocalEvaluator(settings=LocalSettings(cache=cache))
    rows: dict[str, Any] = {}
    for name, measurement in evaluator.evaluate(jobs):
        rows[name] = {
            "verdict": measurement.outcome.value,
            "at_s": round(time.monotonic() - start, 2),
            "build_s": round(measurement.build_s, 2),
            "gpu_s": round(measurement.gpu_s, 2),
            "median_us": measurement.timing.median_us if measurement.timing else None,
            "error": measurement.error[:300],
            "notes": list(measurement.notes)[:4],
            "stages_s": dict(evaluator.seconds.get(name, {})),
        }
        print(name, rows[name]["verdict"], rows[name]["at_s"], measurement.error[:120].replace("\n", " "), flush=True)
    evaluator.close()
    found = {"candidates": len(jobs), "seconds": time.monotonic() - start, "rows": rows, **rate(len(jobs), start)}
    return {**found, "stages_s": mean_stages(rows)}


def jobs_of(chosen: list[BenchmarkCandidate]) -> list[EvaluationJob]:
    """A job each, with the numbers of trials of both sides."""
    settings = EvaluationSettings(seeds=CORRECTNESS_TRIALS, max_samples=TIMING_TRIALS, min_samples=TIMING_TRIALS)
    return [
        EvaluationJob(
            job_id=c.name, task_id=c.name, task_source=c.task, candidate_source=c.source, backend="cuda", seed=7,
            settings=settings,
        )
        for c in chosen
    ]  # fmt: skip


def mean_stages(rows: dict[str, Any]) -> dict[str, float]:
    """Mean seconds by stage of a correct candidate."""
    judged = [row["stages_s"] for row in rows.values() if row["verdict"] == "correct"]
    names = {name for stages in judged for name in stages}
    return {name: round(statistics.mean(stages.get(name, 0.0) for stages in judged), 3) for name in sorted(names)}


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds from a Triton source to its verdict: one of the example tasks, then inputs of growing size."""
    from optimizer.evaluation.local import LocalEvaluator, LocalSettings

    softmax = (REPOSITORY / "examples" / "tasks" / "cuda" / "row_softmax.py").read_text(encoding="utf-8")
    work = {f"row_softmax {turn}": (softmax, f"{PROFILED['row_softmax']}\n# {turn}\n") for turn in range(3)}
    work |= {f"silu of {size} MiB": triton_of_size(size) for size in (16, 64, 256, 1024)}
    evaluator = LocalEvaluator(settings=LocalSettings(cache=Path(arguments.scratch) / "latency"))
    list(evaluator.evaluate(()))  # processes start before the watch does
    found: dict[str, Any] = {}
    for name, (task, source) in work.items():
        job = EvaluationJob(
            job_id=name, task_id=name, task_source=task, candidate_source=source, backend="cuda", seed=len(found)
        )
        start = time.monotonic()
        ((_, measurement),) = evaluator.evaluate([job])
        found[name] = {"verdict": measurement.outcome.value, "seconds": round(time.monotonic() - start, 2)}
        found[name]["stages_s"] = dict(evaluator.seconds.get(name, {}))
        print(name, found[name]["verdict"], found[name]["seconds"], flush=True)
    evaluator.close()
    return found


def rate(count: int, start: float) -> dict[str, float]:
    """Candidates per hour since ``start``."""
    return {"per_hour": round(count * 3600 / (time.monotonic() - start), 1)}
