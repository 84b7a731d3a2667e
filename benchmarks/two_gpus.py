"""What a second GPU brings: recorded candidates through a Dask cluster of one worker a GPU, with two workers and one.

    python -P benchmarks/two_gpus.py --devices 0,1
    python -P benchmarks/two_gpus.py --backend cpu --devices 0 --runs examples/logs/cpu-first --most 2 --repeats 1

Needs torch and the package ``distributed``. An untimed pass builds and warms up; then all workers together evaluate
each candidate that passed a few times, with inputs that nobody has seen; then the first worker alone does as much.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from runner import LOGS, REPOSITORY, evaluated, recorded_jobs, write_results

from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.cluster import ClusterEvaluator

STOP_S = 20.0


def main() -> None:
    """Both sides, one after the other on the same workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="+", default=[LOGS / "h200-htam", LOGS / "h200-feedback"])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--devices", default="0,1", help="one worker each; the first one alone is the other side")
    parser.add_argument("--threads", type=int, default=8, help="jobs that a worker has under way at a time")
    parser.add_argument("--most", type=int, default=12, help="candidates")
    parser.add_argument("--repeats", type=int, default=4, help="times that each is evaluated on each side")
    options = parser.parse_args()
    devices = options.devices.split(",")
    work = spread([job for run in options.runs for job in recorded_jobs(run, options.backend)], options.most)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="htam-two-gpus-")))
        address = stack.enter_context(scheduler(folder))
        workers = [stack.enter_context(worker(address, device, folder, options.threads)) for device in devices]
        evaluator = stack.enter_context(closing(ClusterEvaluator(address)))
        name = arrived(evaluator, options.backend, workers)
        untimed = evaluated(evaluator, anew(work, 1, 0))
        good = [job for job in work if untimed["rows"][f"{job.job_id} 0-0"]["verdict"] == "correct"]
        both = evaluated(evaluator, anew(good, options.repeats, 1))
        for other in workers[1:]:
            end(other)
        alone = evaluated(evaluator, anew(good, options.repeats, 2))
    ratio = both["per_hour"] / alone["per_hour"]
    print(f"{len(workers)} workers {both['per_hour']:.0f} an hour, 1 worker {alone['per_hour']:.0f}: {ratio:.2f} times")
    sides = {"all": summary(both), "first": summary(alone)}
    figures = {"device": name, "workers": len(workers), "candidates": len(good), "repeats": options.repeats}
    write_results(f"two-gpus-{options.backend}", figures | {"sides": sides, "ratio": ratio})


def spread(found: Sequence[EvaluationJob], most: int) -> list[EvaluationJob]:
    """Distinct candidates, evenly from all of ``found``, so that tasks mix."""
    distinct = list({job.candidate_source: job for job in found}.values())
    if not distinct:
        raise SystemExit("the runs hold no candidate")
    return distinct[:: max(len(distinct) // most, 1)][:most]


def anew(work: Sequence[EvaluationJob], repeats: int, side: int) -> list[EvaluationJob]:
    """Jobs with other inputs and names on each side, in the same order."""
    return [
        replace(job, job_id=f"{job.job_id} {side}-{repeat}", seed=10_000 * side + repeat * len(work) + index)
        for repeat in range(repeats)
        for index, job in enumerate(work)
    ]


def summary(side: dict[str, Any]) -> dict[str, Any]:
    """A side without its rows."""
    verdicts = dict(Counter(row["verdict"] for row in side["rows"].values()))
    return {key: value for key, value in side.items() if key != "rows"} | {"verdicts": verdicts}


@contextmanager
def scheduler(folder: Path) -> Iterator[str]:
    """A scheduler on a free port of loopback; yields its address."""
    facts = folder / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(facts)]
    with process("scheduler", *words) as running:
        while not (facts.is_file() and facts.read_text(encoding="utf-8").endswith("}")):
            if running.poll() is not None:
                raise SystemExit("the scheduler did not start")
            time.sleep(0.1)
        yield json.loads(facts.read_text(encoding="utf-8"))["address"]


def worker(address: str, device: str, folder: Path, threads: int) -> Any:
    """One worker that sees one GPU."""
    words = ["worker", address, "--nworkers", "1", "--nthreads", str(threads), "--no-nanny", "--no-dashboard"]
    words += ["--local-directory", str(folder)]
    return process(*words, CUDA_VISIBLE_DEVICES=device, HTAM_BUILD_CACHE=str(folder / "cache"))


@contextmanager
def process(*words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """``dask WORDS``; it is gone afterwards."""
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "dask", *words],
        env=os.environ | variables | {"PYTHONPATH": paths, "DASK_LOGGING__DISTRIBUTED": "error"},
    ) as running:
        try:
            yield running
        finally:
            end(running)


def end(running: subprocess.Popen[bytes]) -> None:
    """Let it leave in order, but not for long."""
    running.terminate()
    with suppress(subprocess.TimeoutExpired):
        running.wait(STOP_S)
    running.kill()


def arrived(evaluator: ClusterEvaluator, backend: str, workers: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait until all workers are there; returns what they measure on."""
    while evaluator.workers < len(workers):
        if any(running.poll() is not None for running in workers):
            raise SystemExit("a worker did not start")
        time.sleep(0.2)
    return evaluator.device_name(backend)


if __name__ == "__main__":
    main()
