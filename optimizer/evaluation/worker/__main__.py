"""``python -P -m optimizer.evaluation.worker JOBS --out RESULTS``: evaluate jobs on this host.

Needs torch and the standard library only. Each result is one line, flushed to disk when it is known,
so a killed worker loses nothing; started again with the same files it goes on with what is missing.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback of our imports would help nobody

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from artifacts.errors import HtamError
from artifacts.measurement import Measurement
from optimizer.evaluation.worker.job_files import finished_jobs, read_jobs, write_results
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker; returns the exit code."""
    parser = argparse.ArgumentParser(prog="optimizer.evaluation.worker", description=__doc__)
    parser.add_argument("jobs", type=Path, help="JSONL, one evaluation job a line")
    parser.add_argument("--out", type=Path, required=True, help="JSONL of results; finished jobs in it are skipped")
    parser.add_argument("--devices", default="", help="CUDA device indices, e.g. 0,1; all by default")
    parser.add_argument("--builders", type=int, default=0, help="candidates that build at a time; default two a core")
    parser.add_argument("--cache", type=Path, default=None, help="folder of built libraries")
    options = parser.parse_args(argv)
    try:
        devices = tuple(int(part) for part in options.devices.split(",") if part.strip())
    except ValueError:
        parser.error(f"--devices wants numbers separated by commas, got {options.devices!r}")
    try:
        return _run(options, devices)
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
