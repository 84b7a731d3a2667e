"""The winners of the shipped H200 runs against the baselines that people run.

    python -P benchmarks/winners.py --jobs winners.jsonl [--precision tf32]
    python -P -m optimizer.evaluation.worker winners.jsonl --out measured.jsonl
    python -P benchmarks/winners.py --jobs winners.jsonl --results measured.jsonl --name winners-h200

They need torch and the standard library, the second a CUDA device. Each task of ``examples/logs/h200-*`` gives one job
for each arm that found a winner, with every baseline; the worker resumes where it was stopped. The table has a line for
each winner; the summary has geometric means for each arm and for the better winner of each task, against every
baseline, against the fastest of the precision class, and against the fastest of all, those with TF32 included where the
candidate may not use it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from runner import LOGS, write_results

from artifacts.codec import decode, encode
from artifacts.measurement import BASELINES, Measurement
from artifacts.runlog import RunLog
from optimizer.evaluation.job import PRECISIONS, EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker.job_files import read_jobs

ANY = "fastest of all"
SEED = 20_260_101


def jobs(settings: EvaluationSettings) -> Iterator[EvaluationJob]:
    """One job a winner, named ``RUN|TASK``."""
    for path in sorted(LOGS.glob("h200-*")):
        log = RunLog.open(path)
        tasks = {entry["task"]["task_id"]: entry["sha256"] for entry in log.manifest["tasks"]}
        for event in log.events():
            if event.kind == "task_finished" and event.payload["best_sha256"]:
                task = event.payload["task_id"]
                yield EvaluationJob(
                    job_id=f"{path.name}|{task}",
                    task_id=task,
                    task_source=log.candidate(tasks[task]),
                    candidate_source=log.candidate(event.payload["best_sha256"]),
                    backend="cuda",
                    seed=SEED,
                    settings=settings,
                )


def row(job_id: str, measurement: Measurement) -> dict[str, Any]:
    """One winner's figures, times in microseconds."""
    run, _, task = job_id.partition("|")
    found: dict[str, Any] = {
        "task": task,
        "run": run,
        "outcome": measurement.outcome.value,
        "error": measurement.error[:300],
        "class": measurement.precision.value,
        "device": measurement.device,
        "winner_us": measurement.timing.median_us if measurement.timing else None,
        "baselines_us": {name: timing.median_us for name, timing in sorted(measurement.baselines.items())},
        "fastest": measurement.fastest_baseline,
        "speedups": dict(measurement.speedups),
        "notes": [note for note in measurement.notes if note.startswith("baseline")],
    }
    named = [measurement.speedup(name) or 0.0 for name in measurement.baselines]
    if measurement.timing and named:
        found["speedups"][ANY] = min(named)
    return found


def means(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Baseline → geometric mean over the winners that have it, their number, and how many are ahead."""
    ratios: dict[str, list[float]] = {}
    for each in rows:
        for name, ratio in each["speedups"].items():
            ratios.setdefault(name, []).append(ratio)
    return {
        name: {"mean": geometric_mean(found), "winners": len(found), "ahead": sum(ratio > 1.0 for ratio in found)}
        for name, found in ratios.items()
    }


def summaries(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Means for each arm, and for the better winner of each task."""
    arms: dict[str, list[dict[str, Any]]] = {}
    best: dict[str, dict[str, Any]] = {}
    for each in rows:
        if each["winner_us"] is not None:
            arms.setdefault(each["run"].rpartition("-")[2], []).append(each)
            known = best.get(each["task"])
            if known is None or each["winner_us"] < known["winner_us"]:
                best[each["task"]] = each
    return {**{f"arm {arm}": means(found) for arm, found in sorted(arms.items())}, "better": means(best.values())}


def show(rows: list[dict[str, Any]], found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the table and the means."""
    print(f"{'winner':52} {'class':9} {'ms':>8}  " + " ".join(f"{name:>10}" for name in BASELINES) + "  fastest")
    for each in sorted(rows, key=lambda one: (one["task"], one["run"])):
        if each["winner_us"] is None:
            print(f"{each['task'] + ' ' + each['run']:52} {each['outcome']}: {each['error'][:100]}")
            continue
        times = [each["baselines_us"].get(name) for name in BASELINES]
        shown = " ".join(f"{'-' if time is None else f'{time / 1e3:.4g}':>10}" for time in times)
        headline = each["speedups"].get("fastest")
        ratio = "-" if headline is None else f"{headline:.2f}x {each['fastest']}"
        name = f"{each['task'].rpartition('/')[2]} {each['run'].removeprefix('h200-')}"
        print(f"{name:52} {each['class']:9} {each['winner_us'] / 1e3:8.4g}  {shown}  {ratio}")
    for name, against in found.items():
        print(f"\n{name}, geometric means of winners against")
        for baseline, figures in sorted(against.items()):
            print(f"  {baseline:16} {figures['mean']:6.2f}x  ahead on {figures['ahead']} of {figures['winners']}")


def main() -> None:
    """Write jobs, or read results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, required=True, help="file of jobs: written, or read with --results")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--match", default="", help="only jobs with this in RUN|TASK")
    parser.add_argument("--results", type=Path, help="what the worker wrote")
    parser.add_argument("--name", help="of the result file, without ending; run it where the worker ran")
    options = parser.parse_args()
    if options.results is None:
        settings = EvaluationSettings(precision=options.precision, baselines=BASELINES)
        chosen = [job for job in jobs(settings) if options.match in job.job_id]
        options.jobs.write_text("".join(json.dumps(encode(job)) + "\n" for job in chosen), encoding="utf-8")
        print(f"{len(chosen)} jobs in {options.jobs}")
        return
    lines = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]
    rows = [row(line["job_id"], decode(Measurement, line["measurement"])) for line in lines]
    found = summaries(rows)
    show(rows, found)
    if options.name:
        settings = encode(read_jobs(options.jobs)[0].settings)
        write_results(options.name, {"settings": settings, "means": found, "rows": rows})


if __name__ == "__main__":
    main()
