"""What a second worker brings: the same jobs through a pool with one worker a GPU, on two GPUs and on one, in one run.

    python -P benchmarks/pool.py --devices 0,1
    python -P benchmarks/pool.py --backend cpu --runs examples/logs/cpu-first --most 2 --repeats 1 --start-s 300

Needs torch and the standard library. Jobs are candidates of recorded runs with their tasks. All workers start and do
every candidate once outside the clock, which builds it and warms them up. Then all workers together do each candidate
a few times, with inputs that nobody has seen; then all workers but the first leave and the first does as much alone.
Every wait is bounded: what a side has not done by its limit is left out, and its rate is of what it did.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / "examples" / "logs"
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.errors import UnavailableError  # noqa: E402
from artifacts.measurement import Measurement  # noqa: E402
from artifacts.outcome import Outcome  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.evaluation.pool.entry import Entry  # noqa: E402
from optimizer.evaluation.pool.evaluator import PoolEvaluator, PoolSettings  # noqa: E402
from optimizer.evaluation.pool.folder import PoolFolder  # noqa: E402

STOP_S = 20.0


@dataclass(frozen=True)
class Side:
    """What some workers did."""

    workers: int
    seconds: float
    results: dict[str, Measurement]
    by_worker: Counter[str]

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return len(self.results) / self.seconds if self.results else 0.0

    def line(self, what: str) -> str:
        """For people."""
        outcomes = dict(Counter(result.outcome.value for result in self.results.values()))
        shares = "+".join(map(str, sorted(self.by_worker.values(), reverse=True)))
        head = f"{what:<10}{self.workers} workers: {len(self.results)} jobs in {self.seconds:.1f} s, {self.rate:.2f}/s"
        return f"{head}; seen at the workers {shares}; {outcomes}"

    def figures(self) -> dict[str, Any]:
        """For the results file."""
        outcomes = dict(Counter(result.outcome.value for result in self.results.values()))
        own = {"workers": self.workers, "seconds": self.seconds, "jobs": len(self.results), "jobs_a_second": self.rate}
        return own | {"outcomes": outcomes, "seen_at_the_workers": sorted(self.by_worker.values())}


def main() -> None:
    """Both sides, beside each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=Path, nargs="+", default=[LOGS / "h200-htam", LOGS / "h200-feedback"])
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--devices", default="0,1", help="one worker each; the first one alone is the other side")
    parser.add_argument("--builders", type=int, default=8, help="jobs that a worker has under way at a time")
    parser.add_argument("--most", type=int, default=12, help="candidates")
    parser.add_argument("--repeats", type=int, default=4, help="times that each is done on each side, inside the clock")
    parser.add_argument("--start-s", type=float, default=45.0, help="limit for the start and for the untimed pass")
    parser.add_argument("--side-s", type=float, default=30.0, help="limit for each side")
    options = parser.parse_args()
    work = chosen([job for run in options.runs for job in jobs(run, options.backend)], options.most)
    if not work:
        raise SystemExit("the runs hold no candidate")
    base = Path(tempfile.mkdtemp(prefix="htam-pool-"))
    try:
        sides = both_sides(base, work, options)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    told(sides, options)


def both_sides(base: Path, work: list[EvaluationJob], options: argparse.Namespace) -> dict[str, Side]:
    """The untimed pass, then all workers, then the first one alone."""
    devices = options.devices.split(",")
    pool = PoolFolder(base / "pool")
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(pool, base / "cache", device, options)) for device in devices]
        arrived(pool, workers, options.start_s)
        sides = {"untimed": side(pool, anew(work, 1, 0), len(workers), options.start_s)}
        print(sides["untimed"].line("untimed"), flush=True)
        good = {name for name, found in sides["untimed"].results.items() if found.outcome is Outcome.CORRECT}
        work = [job for index, job in enumerate(work) if f"0-0-{index}" in good]  # built, and worth timing
        sides["all"] = side(pool, anew(work, options.repeats, 1), len(workers), options.side_s)
        print(sides["all"].line("all"), flush=True)
        for other in workers[1:]:
            end(other)
        sides["first"] = side(pool, anew(work, options.repeats, 2), 1, options.side_s)
        print(sides["first"].line("first"), flush=True)
    return sides


def told(sides: dict[str, Side], options: argparse.Namespace) -> None:
    """The ratio, and everything as one line, before anything is written."""
    figures: dict[str, Any] = {"backend": options.backend, "repeats": options.repeats}
    figures["candidates"] = sum(found.outcome is Outcome.CORRECT for found in sides["untimed"].results.values())
    figures |= {"builders": options.builders, "sides": {name: found.figures() for name, found in sides.items()}}
    figures["device"] = next((result.device for result in sides["all"].results.values()), "")
    if sides["first"].results and sides["all"].results:
        figures["ratio"] = sides["all"].rate / sides["first"].rate
        print(f"ratio: {figures['ratio']:.2f} with {sides['all'].workers} workers over 1")
    print(json.dumps(figures))
    try:
        print(f"wrote {write_results(f'pool-{options.backend}', figures)}")
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"not written: {problem}")  # a copy without its repository
    if "ratio" not in figures:
        raise SystemExit("a side did nothing within its limit")


def chosen(found: list[EvaluationJob], most: int) -> list[EvaluationJob]:
    """Distinct candidates, evenly from all of ``found``, so that tasks mix."""
    distinct = list({job.candidate_source: job for job in found}.values())
    return distinct[:: max(len(distinct) // most, 1)][:most] if most > 0 else []


def anew(work: Sequence[EvaluationJob], repeats: int, side_number: int) -> list[EvaluationJob]:
    """Jobs that no pool knows the result of, in the same order on each side: other inputs and names of their own."""
    return [
        replace(job, job_id=f"{side_number}-{number}-{index}", seed=10_000 * side_number + number * len(work) + index)
        for number in range(repeats)
        for index, job in enumerate(work)
    ]


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


@contextmanager
def worker(
    pool: PoolFolder, cache: Path, device: str, options: argparse.Namespace
) -> Iterator[subprocess.Popen[bytes]]:
    """One worker for one device; it is gone afterwards."""
    command = [sys.executable, "-P", "-m", "optimizer.evaluation.worker", "--pool", str(pool.path)]
    command += ["--backend", options.backend, "--builders", str(options.builders), "--cache", str(cache)]
    command += ["--devices", device] if options.backend == "cuda" else []
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}  # a bare host has the checkout only
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment) as process:
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Let it leave in order, but not for long."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    process.kill()


def arrived(pool: PoolFolder, workers: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    """Wait until all workers are there."""
    stop = time.monotonic() + limit_s
    while len(pool.living(pool.now())) < len(workers):
        if any(process.poll() is not None for process in workers):
            raise SystemExit("a worker did not start")
        if time.monotonic() > stop:
            raise SystemExit("the workers take too long to start")
        time.sleep(0.1)


def side(pool: PoolFolder, work: list[EvaluationJob], workers: int, limit_s: float) -> Side:
    """What the workers do of ``work`` within the limit; the rest is taken out of the pool."""
    evaluator = PoolEvaluator(pool.path, PoolSettings(poll_s=0.05))
    closing = threading.Timer(limit_s, evaluator.close)
    closing.daemon = True
    results: dict[str, Measurement] = {}
    begin = last = time.monotonic()
    closing.start()
    with watched(pool) as seen, suppress(UnavailableError):  # the limit
        for name, measurement in evaluator.evaluate(work):
            results[name], last = measurement, time.monotonic()
    closing.cancel()
    evaluator.close()
    rest = time.monotonic() + STOP_S
    while held(pool) and time.monotonic() < rest:  # what was begun before the limit must not slow the next side
        time.sleep(0.05)
    return Side(workers, last - begin, results, Counter(name for name, _ in seen))


@contextmanager
def watched(pool: PoolFolder) -> Iterator[set[tuple[str, str]]]:
    """Which worker had which job meanwhile."""
    seen: set[tuple[str, str]] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            seen.update(held(pool))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def held(pool: PoolFolder) -> set[tuple[str, str]]:
    """Which worker has which job just now."""
    entries = [Entry.parse(path.name) for path in (pool.path / "leases").iterdir()]
    return {(entry.worker, entry.key) for entry in entries if entry is not None}


if __name__ == "__main__":
    main()
