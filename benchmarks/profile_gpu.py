"""Profile, baselines and waiting times on a GPU host: ``python -P benchmarks/profile_gpu.py [--out FILE]``.

Evaluates three candidates on the example tasks with hardware counters and all baselines, then measures how
long a fresh isolated process and a Triton candidate from source to verdict take. Writes JSON to FILE, to
``$OUT/profile.json`` or to ``benchmarks/results/profile.json``. Needs torch and the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from artifacts.measurement import Measurement  # noqa: E402 - a bare host has the checkout only
from benchmarks.profile_candidates import CANDIDATES  # noqa: E402
from optimizer.evaluation.baselines import NAMES  # noqa: E402
from optimizer.evaluation.build.channel import BuildServer  # noqa: E402
from optimizer.evaluation.build.standard import default_root, standard_builder  # noqa: E402
from optimizer.evaluation.cells import CellProcess  # noqa: E402
from optimizer.evaluation.hosts import devices_of  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.evaluation.judge.cell_client import Cell  # noqa: E402
from optimizer.evaluation.local import LocalEvaluator, LocalSettings  # noqa: E402
from optimizer.evaluation.process.spawn import ForkServer  # noqa: E402

FULL = EvaluationSettings(profile=True, baselines=NAMES)
PLAIN = EvaluationSettings()
TRIVIAL = "from torch import nn\n\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return x\n"


def job(name: str, settings: EvaluationSettings, remark: str = "") -> EvaluationJob:
    """A candidate on the example task of its name; a remark makes its source a new one."""
    task = ROOT / "examples" / "tasks" / "cuda" / f"{name}.py"
    return EvaluationJob(
        job_id=name,
        task_id=name,
        task_source=task.read_text(encoding="utf-8"),
        candidate_source=CANDIDATES[name] + remark,
        backend="cuda",
        seed=int.from_bytes(os.urandom(6), "big"),
        settings=settings,
    )


def evaluated(evaluator: LocalEvaluator, work: EvaluationJob) -> tuple[Measurement, float]:
    """The measurement and the seconds until it was there."""
    start = time.monotonic()
    ((_, measurement),) = evaluator.evaluate([work])
    return measurement, time.monotonic() - start


def row(measurement: Measurement, seconds: float) -> dict[str, Any]:
    """One candidate's figures without raw samples."""
    profile = measurement.profile
    return {
        "outcome": measurement.outcome.value,
        "error": measurement.error,
        "seconds": round(seconds, 2),
        "median_us": measurement.timing.median_us if measurement.timing else None,
        "baselines_us": {name: timing.median_us for name, timing in measurement.baselines.items()},
        "speedups": {name: measurement.speedup(name) for name in measurement.baselines},
        "evidence": profile.evidence.value if profile else None,
        "bottleneck": profile.bottleneck.value if profile else None,
        "fraction_of_bound": profile.fraction_of_bound if profile else None,
        "findings": list(profile.findings) if profile else [],
        "metrics": dict(profile.metrics) if profile else {},
        "notes": list(measurement.notes),
    }


def show(name: str, found: dict[str, Any]) -> None:
    """Print one candidate's figures."""
    print(f"\n{name}: {found['outcome']} {found['error'][:300]}, {found['seconds']} s", flush=True)
    if found["median_us"] is not None:
        times = [f"{key} {value:.1f} ({found['speedups'][key]:.2f}×)" for key, value in found["baselines_us"].items()]
        print(f"  candidate {found['median_us']:.1f} µs; {', '.join(times)}")
        print(f"  {found['bottleneck']} by {found['evidence']}, {found['fraction_of_bound']:.2f} of the bound")
    for line in (*found["findings"], *(f"note: {note}" for note in found["notes"])):
        print(f"    {line}")


def fresh_process_seconds(count: int = 6) -> list[float]:
    """From asking for a sandboxed process with a CUDA context to the loaded candidate."""
    server, builds, result = ForkServer(), BuildServer(standard_builder(default_root())), []
    job = EvaluationJob(job_id="", task_id="", task_source="", candidate_source=TRIVIAL, backend="cuda", seed=0)
    server.wait_ready()
    try:
        for _ in range(count):
            start = time.monotonic()
            process = CellProcess(server, builds, backend="cuda", device=devices_of("cuda")[0], readable=[])
            process.start()
            process.admit(job, 60.0)
            Cell(process.channel, 60.0).load(job.candidate_source)
            result.append(time.monotonic() - start)
            process.close()
    finally:
        server.close()
    return [round(seconds, 3) for seconds in result]


def run(cache: Path) -> dict[str, Any]:
    """All figures; prints as they come."""
    evaluator = LocalEvaluator(0, LocalSettings(cache=cache))
    rows: dict[str, Any] = {}
    try:
        for name in CANDIDATES:
            rows[name] = row(*evaluated(evaluator, job(name, FULL)))
            show(name, rows[name])
        again = row(*evaluated(evaluator, job("rms_norm", FULL)))
        triton = [evaluated(evaluator, job("row_softmax", PLAIN, f"\n# {turn}\n")) for turn in range(3)]
    finally:
        evaluator.close()
    fresh = fresh_process_seconds()
    verdicts = [round(seconds, 2) for _, seconds in triton]
    print(f"\nthe first candidate again, built and profiled before: {again['seconds']} s, by {again['evidence']}")
    print(f"fresh isolated process: {fresh} s (goal 0.4)")
    print(f"Triton from source to verdict: {verdicts} s (goal 4), {[found.outcome.value for found, _ in triton]}")
    return {
        "candidates": rows,
        "again_seconds": again["seconds"],
        "fresh_process_s": fresh,
        "fresh_process_median_s": statistics.median(fresh),
        "triton_source_to_verdict_s": verdicts,
        "triton_verdicts": [found.outcome.value for found, _ in triton],
        "triton_measuring_s": [round(found.gpu_s, 2) for found, _ in triton],
    }


def machine() -> dict[str, Any]:
    """Where and from what the figures come."""
    import torch

    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        head = commit.stdout.strip() if commit.returncode == 0 else "unknown"
    except FileNotFoundError:
        head = "unknown"
    return {
        "device": devices_of("cuda")[0].name,
        "commit": head,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(os.environ.get("OUT", ROOT / "benchmarks" / "results"))
    parser.add_argument("--out", type=Path, default=folder / "profile.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="htam-cache-") as cache:
        result = {"host": machine(), **run(Path(cache))}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {options.out.name}")


if __name__ == "__main__":
    main()
