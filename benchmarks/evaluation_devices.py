"""Sections of ``benchmarks/evaluation.py`` about sharing: several devices, tuning runs, a kernel against itself."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from evaluation_candidates import candidates  # noqa: E402
from evaluation_ours import jobs_of, mean_stages  # noqa: E402

from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402

RUNS = ("h200-htam", "h200-feedback")
"""Tuning runs in ``examples/logs``: thirteen tasks, four steps each."""
COPIES = 4
"""Of 27 candidates: enough for A/A, and for a device to be busy much longer than it starts."""


def devices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Throughput of a running worker with one device and with all of them; small tasks, libraries built beforehand."""
    cache = Path(arguments.scratch) / "ours"
    small = [job for job in jobs_of(candidates()) if job.task_id in _right()]
    evaluate(small, cache, (), arguments)
    return on_one_and_all(_copies(small, arguments.copies), cache, arguments)


def tuning(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same with the candidates of two tuning runs, incumbents included, as the runs would send them."""
    cache = Path(arguments.scratch) / "tuning"
    jobs = tuning_jobs()[:: arguments.every]
    first = evaluate(jobs, cache, (), arguments)
    if arguments.builds_only:
        return {"first": first}
    return {"first": first, **on_one_and_all(jobs, cache, arguments)}


def same(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kernels against themselves, each in two processes of its own, six evaluations on the device at a time."""
    cache = Path(arguments.scratch) / "ours"
    right = [job for job in jobs_of(candidates()) if job.task_id in _right()]
    settings = dataclasses.replace(right[0].settings, min_samples=20, max_samples=400)
    jobs = [
        dataclasses.replace(job, incumbent_source=job.candidate_source, settings=settings)
        for job in _copies(right, COPIES)
    ]
    found = evaluate(jobs, cache, (), arguments)
    rows = [row for row in found["rows"].values() if row["faster_than_incumbent"] is not None]
    ratios = sorted(row["incumbent_us"] / row["median_us"] for row in rows)
    return {
        "trials": len(rows),
        "promoted": sum(row["faster_than_incumbent"] for row in rows),
        "median_difference": statistics.median(abs(ratio - 1) for ratio in ratios),
        "ratios": [ratios[0], statistics.median(ratios), ratios[-1]],
        **{key: found[key] for key in ("seconds", "verdicts", "stages_s")},
    }


def on_one_and_all(jobs: Sequence[EvaluationJob], cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both throughputs and their ratio."""
    import torch

    found = {
        str(count): evaluate(jobs, cache, tuple(range(count)), arguments) for count in (1, torch.cuda.device_count())
    }
    one, several = (found[key] for key in sorted(found, key=int))
    return {**found, "gain": one["seconds"] / several["seconds"]}


def evaluate(
    jobs: Sequence[EvaluationJob], cache: Path, used: tuple[int, ...], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Verdicts and seconds of a worker that has started before the watch does."""
    from optimizer.evaluation.local import LocalEvaluator, LocalSettings

    settings = LocalSettings(devices=used, cache=cache, seats=arguments.seats)
    begin = time.monotonic()
    evaluator = LocalEvaluator(settings=settings)
    list(evaluator.evaluate(()))
    start = time.monotonic()
    rows: dict[str, Any] = {}
    try:
        for name, found in evaluator.evaluate(jobs):
            rows[name] = {
                "verdict": found.outcome.value,
                "at_s": round(time.monotonic() - start, 2),
                "median_us": found.timing.median_us if found.timing else None,
                "incumbent_us": found.incumbent.median_us if found.incumbent else None,
                "faster_than_incumbent": found.faster_than_incumbent,
                "error": found.error[:200],
                "stages_s": dict(evaluator.seconds.get(name, {})),
            }
    finally:
        seconds = time.monotonic() - start
        evaluator.close()
    result = {
        "candidates": len(jobs),
        "seconds": round(seconds, 2),
        "per_hour": round(len(jobs) * 3600 / seconds, 1),
        "worker_start_s": round(start - begin, 2),
        "verdicts": dict(Counter(row["verdict"] for row in rows.values())),
        "stages_s": mean_stages(rows),
        "rows": rows,
    }
    print(used, {key: value for key, value in result.items() if key != "rows"}, flush=True)
    return result


def tuning_jobs() -> list[EvaluationJob]:
    """Every candidate of the runs, against the incumbent that it was measured against."""
    jobs = []
    for run in RUNS:
        folder = REPOSITORY / "examples" / "logs" / run
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
        tasks = {
            each["payload"]["task"]["task_id"]: each["payload"]["source_sha256"] for each in _of(events, "task_started")
        }
        for step in (each["payload"] for each in _of(events, "step")):
            jobs.append(
                EvaluationJob(
                    job_id=f"{run}/{step['task_id']}/{step['step_id']}",
                    task_id=step["task_id"],
                    task_source=_source(folder, tasks[step["task_id"]]),
                    candidate_source=_source(folder, step["candidate_sha256"]),
                    incumbent_source=_source(folder, step["parent_sha256"]),
                    backend="cuda",
                    seed=11,
                    settings=EvaluationSettings(),
                )
            )
    return jobs


def _of(events: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


def _source(folder: Path, sha256: str) -> str:
    return (folder / "candidates" / f"{sha256}.py").read_text(encoding="utf-8") if sha256 else ""


def _right() -> set[str]:
    return {candidate.name for candidate in candidates() if candidate.expected == "correct"}


def _copies(jobs: Sequence[EvaluationJob], count: int) -> list[EvaluationJob]:
    return [dataclasses.replace(job, job_id=f"{job.job_id} {copy}") for copy in range(count) for job in jobs]
