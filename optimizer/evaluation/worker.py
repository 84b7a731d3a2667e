"""``python -P -m optimizer.evaluation.worker JOBS --out RESULTS``, or ``--pool DIR``: evaluate jobs on this host.

Needs torch and the standard library only. Each result is one line, flushed to disk when it is known,
so a killed worker loses nothing; started again with the same files it goes on with what is missing.
A pool is a folder that several hosts see; start one worker a GPU: ``--pool DIR --devices 0``.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback of our imports would help nobody

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, HtamError
from artifacts.measurement import Measurement
from optimizer.evaluation.hosts import devices_of
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.local import LocalEvaluator, LocalSettings
from optimizer.evaluation.pool.folder import PoolFolder
from optimizer.evaluation.pool.serving import PoolWorker

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def read_jobs(path: Path) -> list[EvaluationJob]:
    """Jobs of a JSONL file.

    Raises:
        BadInputError: no such file, or a line that is no job; the message has its number.
    """
    if not path.is_file():
        raise BadInputError(f"no jobs file at {path}", "give the file that htam ask wrote")
    jobs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            jobs.append(decode(EvaluationJob, json.loads(line)))
        except json.JSONDecodeError as problem:
            raise BadInputError(f"{path}:{number}: no JSON: {problem}", "write the jobs file again") from problem
        except BadInputError as problem:
            raise BadInputError(f"{path}:{number}: {problem.what}", problem.fix) from problem
    return jobs


def finished_jobs(path: Path) -> set[str]:
    """Ids in a results file that hold a measurement; a torn last line is cut off."""
    if not path.is_file():
        return set()
    done: set[str] = set()
    good = 0
    with path.open("rb") as file:
        for line in file:
            job_id = _result_id(line)
            if job_id is None:
                break
            done.add(job_id)
            good += len(line)
    os.truncate(path, good)
    return done


def _result_id(line: bytes) -> str | None:
    try:
        result = json.loads(line)
        decode(Measurement, result["measurement"])
        return str(result["job_id"]) if line.endswith(b"\n") else None
    except (ValueError, KeyError, TypeError, BadInputError):
        return None


def write_results(path: Path, results: Iterator[tuple[str, Measurement]]) -> int:
    """Append results as they come, each synced; return how many."""
    count = 0
    with path.open("a", encoding="utf-8") as file:
        for job_id, measurement in results:
            file.write(json.dumps({"job_id": job_id, "measurement": encode(measurement)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            count += 1
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker; returns the exit code."""
    parser = argparse.ArgumentParser(prog="optimizer.evaluation.worker", description=__doc__)
    parser.add_argument("jobs", type=Path, nargs="?", help="JSONL, one evaluation job a line")
    parser.add_argument("--out", type=Path, help="JSONL of results; finished jobs in it are skipped")
    parser.add_argument("--pool", type=Path, help="folder from which jobs are pulled, in place of JOBS")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda", help="of the pool's jobs to take")
    parser.add_argument("--idle-s", type=float, default=None, help="leave the pool after so many seconds without a job")
    parser.add_argument("--devices", default="", help="CUDA device indices, e.g. 0,1; all by default")
    parser.add_argument("--builders", type=int, default=0, help="candidates that build at a time; default two a core")
    parser.add_argument("--cache", type=Path, default=None, help="folder of built libraries")
    options = parser.parse_args(argv)
    try:
        devices = tuple(int(part) for part in options.devices.split(",") if part.strip())
    except ValueError:
        parser.error(f"--devices wants numbers separated by commas, got {options.devices!r}")
    if options.pool is None and (options.jobs is None or options.out is None):
        parser.error("give JOBS and --out, or --pool")
    try:
        return _run(options, devices) if options.pool is None else _serve(options, devices)
    except HtamError as problem:
        sys.stderr.write(f"worker: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("worker: interrupted; what is measured is kept, the rest is left to the next worker\n")
        return INTERRUPTED


def _run(options: argparse.Namespace, devices: tuple[int, ...]) -> int:
    jobs = read_jobs(options.jobs)
    done = finished_jobs(options.out)
    waiting = [job for job in jobs if job.job_id not in done]
    if not waiting:
        options.out.touch()  # so that whoever is told of it finds it
        sys.stderr.write(f"worker: nothing to do, {len(jobs)} jobs in {options.jobs}, {len(done)} in {options.out}\n")
        return 0
    evaluator = LocalEvaluator(options.builders, LocalSettings(devices=devices, cache=options.cache))
    try:
        write_results(options.out, _told(evaluator.evaluate(waiting), len(waiting)))
    finally:
        evaluator.close()
    return 0


def _told(results: Iterator[tuple[str, Measurement]], wanted: int) -> Iterator[tuple[str, Measurement]]:
    """Pass results on and say each in one line, for whoever waits for them."""
    for number, (job_id, measurement) in enumerate(results, start=1):
        sys.stderr.write(f"worker: {number} of {wanted}, {job_id}: {measurement.outcome.value}\n")
        yield job_id, measurement


def _serve(options: argparse.Namespace, devices: tuple[int, ...]) -> int:
    """Serve a pool until a signal: the first one lets what is under way finish, a second one gives it back."""
    lent = devices_of(options.backend, devices)
    pool = PoolFolder(options.pool)
    evaluator = LocalEvaluator(options.builders, LocalSettings(devices=devices, cache=options.cache))
    try:
        lanes = options.builders or os.cpu_count() or 1
        worker = PoolWorker(pool, evaluator, lent, lanes=lanes, idle_s=options.idle_s)
        ending = _Ending(worker)
        names = ", ".join(sorted({device.name for device in lent}))
        sys.stderr.write(f"worker: takes jobs from {options.pool} for {len(lent)} × {names}; Ctrl-C ends it\n")
        worker.serve()
    finally:
        evaluator.close()
    return INTERRUPTED if ending.asked == signal.SIGINT else 0


class _Ending:
    """Ends a worker of a pool in order when a signal asks for it, and at once when there is nothing to finish."""

    def __init__(self, worker: PoolWorker) -> None:
        self._worker = worker
        self.asked = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._worker.stop()
        if self.asked or (number == signal.SIGINT and not self._worker.busy):
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)  # nothing is left to do but to end
            raise KeyboardInterrupt
        self.asked = number
        if self._worker.busy:
            sys.stderr.write(f"worker: {self._worker.busy} under way to be finished; a second signal gives them back\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
