"""What every benchmark needs: where figures come from, jobs of recorded runs, an evaluator that has started, results.

Importing it makes the checkout importable, since a bare GPU host has nothing else of ours.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LOGS = REPOSITORY / "examples" / "logs"
sys.path.insert(0, str(REPOSITORY))

from artifacts.measurement import Measurement  # noqa: E402 - the path comes first
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings, Evaluator  # noqa: E402
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings  # noqa: E402


def write_results(name: str, figures: dict[str, Any]) -> Path:
    """Write ``$OUT/NAME.json``, or ``benchmarks/results/NAME.json``, with the host's facts, and return its path."""
    folder = Path(os.environ.get("OUT") or REPOSITORY / "benchmarks" / "results")
    path = folder / f"{name}.json"
    text = json.dumps({"host": host()} | finite(figures), indent=1, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    print(f"wrote {path}", flush=True)
    return path


def host() -> dict[str, Any]:
    """Commit, processor and versions; the device where torch sees one."""
    facts = {
        "commit": os.environ.get("COMMIT") or _output(["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"]),
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "gpus": _output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).splitlines(),
    }
    if facts["gpus"]:
        import torch

        facts |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    return facts


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def finite(value: Any) -> Any:
    """``value`` with NaN as null and floats to six digits."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def recorded_jobs(run: Path, backend: str) -> list[EvaluationJob]:
    """One job a measured candidate of the run in ``run``, named by its step."""
    log = RunLog.open(run)
    events = list(log.events())
    tasks = {
        event.key: log.candidate(event.payload["source_sha256"]) for event in events if event.kind == "task_started"
    }
    return [
        EvaluationJob(
            job_id=str(event.key),
            task_id=event.payload["task_id"],
            task_source=tasks[event.payload["task_id"]],
            candidate_source=log.candidate(event.payload["candidate_sha256"]),
            backend=backend,
            seed=0,
            settings=EvaluationSettings(baselines=()),
        )
        for event in events
        if event.kind == "step" and event.payload["candidate_sha256"]
    ]


@contextmanager
def started(cache: Path | None = None, devices: tuple[int, ...] = ()) -> Iterator[LocalEvaluator]:
    """An evaluator of this host whose processes run before any watch does; ended afterwards."""
    evaluator = LocalEvaluator(settings=LocalSettings(devices=devices, cache=cache))
    try:
        list(evaluator.evaluate(()))
        yield evaluator
    finally:
        evaluator.close()


def evaluated(evaluator: Evaluator, jobs: Sequence[EvaluationJob]) -> dict[str, Any]:
    """Verdict, seconds and time of every job as it comes, and verdicts an hour."""
    begin = time.monotonic()
    rows: dict[str, Any] = {}
    for name, found in evaluator.evaluate(jobs):
        rows[name] = row(found) | {"at_s": time.monotonic() - begin}
        print(f"{name:44} {found.outcome.value:14} {rows[name]['at_s']:7.1f} s  {found.error[:100]!r}", flush=True)
    seconds = time.monotonic() - begin
    return {"jobs": len(jobs), "seconds": seconds, "per_hour": 3600 * len(jobs) / seconds, "rows": rows}


def row(found: Measurement) -> dict[str, Any]:
    """What the result files keep of a measurement."""
    return {
        "verdict": found.outcome.value,
        "stage": found.stage,
        "error": found.error[:300],
        "build_s": found.build_s,
        "gpu_s": found.gpu_s,
        "median_us": found.timing.median_us if found.timing else None,
        "incumbent_us": found.incumbent.median_us if found.incumbent else None,
        "faster_than_incumbent": found.faster_than_incumbent,
        "baselines_us": {name: timing.median_us for name, timing in found.baselines.items()},
    }


def median_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Median over the jobs of both of how far their two times are apart, as a share of the shorter one."""
    times: list[tuple[float, float]] = [
        (own["median_us"], second[name]["median_us"]) for name, own in first.items() if name in second
    ]
    return statistics.median(abs(one - other) / min(one, other) for one, other in times if one and other)
