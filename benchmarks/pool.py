"""What a second worker brings: the same jobs through a pool with one worker and with two, in one run.

    python -P benchmarks/pool.py --devices 0,1
    python -P benchmarks/pool.py --backend cpu --runs examples/logs/cpu-first --most 2    # a smoke test

Needs torch and the standard library. Jobs are the candidates of recorded runs with their tasks. Each side gets its own
build cache and one untimed job first; then all jobs cold (build and measure), then all again warm (measure only).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / "examples" / "logs"
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.measurement import Measurement  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.evaluation.pool.evaluator import PoolEvaluator  # noqa: E402
from optimizer.evaluation.pool.folder import PoolFolder, file_time  # noqa: E402


def main() -> None:
    """Both sides, beside each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=Path, nargs="+", default=[LOGS / "h200-htam", LOGS / "h200-feedback"])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--devices", default="0,1", help="one worker each; the first one alone is the other side")
    parser.add_argument("--builders", type=int, default=8, help="candidates that a worker builds at a time")
    parser.add_argument("--most", type=int, default=64, help="jobs at most")
    options = parser.parse_args()
    found = [job for run in options.runs for job in jobs(run, options.backend)]
    work = [replace(job, job_id=f"{seed}-{job.job_id}", seed=seed) for seed, job in enumerate(found)][: options.most]
    devices = options.devices.split(",")
    sides = {str(len(use)): side(work, options, use) for use in (devices[:1], devices)}
    one, many = sides[str(1)], sides[str(len(devices))]
    figures: dict[str, Any] = {"jobs": len(work), "workers": len(devices), "backend": options.backend, "sides": sides}
    figures |= {f"{kind}_ratio": one[f"{kind}_s"] / many[f"{kind}_s"] for kind in ("cold", "warm")}
    for name, found in sides.items():
        print(f"{name} workers: cold {found['cold_s']:.1f} s, warm {found['warm_s']:.1f} s; {found['outcomes']}")
    print(f"ratio: cold {figures['cold_ratio']:.2f}, warm {figures['warm_ratio']:.2f} over {len(work)} jobs")
    write_results(f"pool-{options.backend}", figures)


def jobs(run: Path, backend: str) -> list[EvaluationJob]:
    """One job a measured candidate of ``run``."""
    log = RunLog.open(run)
    sources = {event.key: log.candidate(event.payload["source_sha256"]) for event in log.events() if is_start(event)}
    found = []
    for event in log.events():
        if event.kind == "step" and event.payload["task_id"] in sources:
            found.append(
                EvaluationJob(
                    job_id=str(event.key),
                    task_id=event.payload["task_id"],
                    task_source=sources[event.payload["task_id"]],
                    candidate_source=log.candidate(event.payload["candidate_sha256"]),
                    backend=backend,
                    seed=0,
                    settings=EvaluationSettings(),
                )
            )
    return found


def is_start(event: Any) -> bool:
    """Whether an event names a task's source."""
    return bool(event.kind == "task_started")


def side(work: list[EvaluationJob], options: argparse.Namespace, devices: list[str]) -> dict[str, Any]:
    """All jobs with one worker a device."""
    base = Path(tempfile.mkdtemp(prefix="htam-pool-"))
    pool = PoolFolder(base / "pool")
    command = [sys.executable, "-P", "-m", "optimizer.evaluation.worker", "--pool", str(pool.path)]
    command += ["--backend", options.backend, "--builders", str(options.builders), "--cache", str(base / "cache")]
    environment = {"cwd": REPOSITORY}
    workers = [
        subprocess.Popen(command + (["--devices", device] if options.backend == "cuda" else []), **environment)
        for device in devices
    ]
    evaluator = PoolEvaluator(pool.path)
    try:
        while len(pool.living(file_time(base / "clock"))) < len(devices):
            if any(worker.poll() is not None for worker in workers):
                raise SystemExit("a worker did not start")
            time.sleep(0.1)
        timed(evaluator, [replace(work[0], seed=-1)])
        cold_s, results = timed(evaluator, work)
        warm_s, _ = timed(evaluator, [replace(job, seed=job.seed + len(work)) for job in work])
    finally:
        evaluator.close()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(120)
        shutil.rmtree(base)
    outcomes: dict[str, int] = {}
    for measurement in results.values():
        outcomes[measurement.outcome.value] = outcomes.get(measurement.outcome.value, 0) + 1
    return {"cold_s": cold_s, "warm_s": warm_s, "outcomes": outcomes, "device": next(iter(results.values())).device}


def timed(evaluator: PoolEvaluator, work: list[EvaluationJob]) -> tuple[float, dict[str, Measurement]]:
    """Seconds for all of ``work``, and the results."""
    begin = time.monotonic()
    results = dict(evaluator.evaluate(work))
    return time.monotonic() - begin, results


if __name__ == "__main__":
    main()
