"""Sections of ``benchmarks/evaluation.py`` about sharing: several devices, tuning runs, a kernel against itself."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
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
    """Throughput of a running worker with one device and with all of them, libraries built beforehand.

    Two workloads: small tasks, of which a device sees little, and candidates of two tuning runs with the incumbents
    that the runs measured them against.
    """
    import torch

    cache = Path(arguments.scratch) / "ours"
    small = [job for job in jobs_of(candidates()) if job.task_id in _right()]
    tuning = [job for job in tuning_jobs() if re.search(arguments.match, job.job_id)]
    work = {"small": _copies(small, arguments.copies), "tuning": tuning}
    found: dict[str, Any] = {name: {} for name in work}
    several = tuple(range(torch.cuda.device_count()))
    for used in (several, several[:1]):
        with Worker(cache, used, arguments.seats) as worker:
            if used is several:
                worker.evaluate(small if arguments.built else [*small, *tuning])
            for name, jobs in work.items():
                found[name][str(len(used))] = worker.evaluate(jobs)
    for each in found.values():
        each["gain"] = each["1"]["seconds"] / each[str(len(several))]["seconds"]
        print({key: value if key == "gain" else value["seconds"] for key, value in each.items()}, flush=True)
    return found


def same(arguments: argparse.Namespace) -> dict[str, Any]:
    """Kernels against themselves, each in two processes of its own, six evaluations on the device at a time."""
    cache = Path(arguments.scratch) / "ours"
    right = [job for job in jobs_of(candidates()) if job.task_id in _right()]
    jobs = [dataclasses.replace(job, incumbent_source=job.candidate_source) for job in _copies(right, COPIES)]
    with Worker(cache, tuple(arguments.devices), arguments.seats) as worker:
        found = worker.evaluate(jobs)
    rows = [row for row in found["rows"].values() if row["faster_than_incumbent"] is not None]
    ratios = sorted(row["incumbent_us"] / row["median_us"] for row in rows)
    return {
        "trials": len(rows),
        "promoted": sum(row["faster_than_incumbent"] for row in rows),
        "median_difference": statistics.median(abs(ratio - 1) for ratio in ratios),
        "ratios": [ratios[0], statistics.median(ratios), ratios[-1]],
        **{key: found[key] for key in ("seconds", "verdicts", "stages_s")},
    }


class Worker:
    """An evaluator that has started before the watch does.

    Args:
        cache: of built libraries.
        used: device indices; all when empty.
        seats: evaluations on a device at a time.
    """

    def __init__(self, cache: Path, used: tuple[int, ...], seats: int) -> None:
        from optimizer.evaluation.local import LocalEvaluator, LocalSettings

        self._used = used
        self._evaluator = LocalEvaluator(settings=LocalSettings(devices=used, cache=cache, seats=seats))

    def __enter__(self) -> Worker:
        """Wait until its processes run."""
        list(self._evaluator.evaluate(()))
        return self

    def __exit__(self, *problem: object) -> None:
        """End it."""
        self._evaluator.close()

    def evaluate(self, jobs: Sequence[EvaluationJob]) -> dict[str, Any]:
        """Verdicts and seconds."""
        start = time.monotonic()
        rows: dict[str, Any] = {}
        for name, found in self._evaluator.evaluate(jobs):
            rows[name] = {
                "verdict": found.outcome.value,
                "at_s": round(time.monotonic() - start, 2),
                "build_s": round(found.build_s, 2),
                "median_us": found.timing.median_us if found.timing else None,
                "incumbent_us": found.incumbent.median_us if found.incumbent else None,
                "faster_than_incumbent": found.faster_than_incumbent,
                "error": found.error[:200],
                "stages_s": dict(self._evaluator.seconds.get(name, {})),
            }
        seconds = time.monotonic() - start
        result = {
            "candidates": len(jobs),
            "with_incumbent": sum(bool(job.incumbent_source) for job in jobs),
            "seconds": round(seconds, 2),
            "per_hour": round(len(jobs) * 3600 / seconds, 1),
            "verdicts": dict(Counter(row["verdict"] for row in rows.values())),
            "stages_s": mean_stages(rows),
            "rows": rows,
        }
        print(self._used, {key: value for key, value in result.items() if key != "rows"}, flush=True)
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
