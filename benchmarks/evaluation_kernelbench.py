"""KernelBench's side of ``benchmarks/evaluation.py``: one candidate after the other, or all of them built ahead."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from evaluation_candidates import BenchmarkCandidate, candidates  # noqa: E402
from evaluation_ours import CORRECTNESS_TRIALS, TIMING_TRIALS, evaluate_ours, rate  # noqa: E402

SAMPLE = (
    "relu_extension_h_correct",
    "relu_types_h_correct",
    "relu_load_correct",
    "relu_triton_correct",
    "relu_extension_h_compile_error",
)
"""What ``sequential`` runs by default: one of each kind, since all of them take most of an hour."""
BOTH = (
    "relu_extension_h_correct",
    "silu_extension_h_correct",
    "sigmoid_extension_h_wrong_result",
    "relu_load_correct",
    "relu_triton_correct",
    "sigmoid_triton_wrong_result",
)
"""What ``parallel`` runs by default, on both sides: all of them take eleven minutes there."""


def kernelbench(
    mode: str, candidate: BenchmarkCandidate, build_dir: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One KernelBench call in a fresh process, as its documentation runs it."""
    order = {
        "task": candidate.task,
        "source": candidate.source,
        "backend": candidate.backend,
        "build_dir": str(build_dir),
        "correctness": CORRECTNESS_TRIALS,
        "trials": TIMING_TRIALS,
    }
    build_dir.mkdir(parents=True, exist_ok=True)
    path = build_dir / f"{mode}.json"
    path.write_text(json.dumps(order), encoding="utf-8")
    start = time.monotonic()
    driver = [sys.executable, str(REPOSITORY / "benchmarks" / "kernelbench_driver.py"), arguments.kernelbench, mode]
    done = subprocess.run([*driver, str(path)], capture_output=True, text=True, check=False, timeout=600)
    lines = done.stdout.strip().splitlines()
    try:
        reply = json.loads(lines[-1])
    except (IndexError, ValueError):
        reply = {"verdict": "runtime_error", "error": (done.stderr or done.stdout)[-400:]}
    print(
        mode, candidate.name, reply.get("verdict", reply.get("built")), round(time.monotonic() - start, 1), flush=True
    )
    return {**reply, "seconds": round(time.monotonic() - start, 2)}


def sequential(arguments: argparse.Namespace) -> dict[str, Any]:
    """One candidate after the other, each built and evaluated in its own fresh process."""
    root = Path(arguments.scratch) / "sequential"
    chosen = [c for c in candidates() if arguments.all or c.name in SAMPLE]
    rows = {c.name: kernelbench("evaluate", c, root / c.name, arguments) for c in chosen}
    kinds = {c.name: (c.kind, c.expected == "compile_error") for c in candidates()}
    means = {
        kinds[name]: statistics.mean(row["seconds"] for other, row in rows.items() if kinds[other] == kinds[name])
        for name in rows
    }
    failing = [value for key, value in means.items() if key[1]]
    total = sum(means.get(kinds[c.name], failing[0] if failing else 0.0) for c in candidates())
    return {
        "rows": rows,
        "seconds_for_all": round(total, 1),
        "scaled_from": len(rows),
        "per_hour": round(42 * 3600 / total, 1),
    }


def parallel(arguments: argparse.Namespace) -> dict[str, Any]:
    """Pre-build on all cores, then one fresh process a candidate on the device; ours on the same candidates."""
    root = Path(arguments.scratch) / "parallel"
    shutil.rmtree(root, ignore_errors=True)
    chosen = [c for c in candidates() if arguments.all or c.name in BOTH]
    ours_too = evaluate_ours(chosen, root / "ours", arguments)
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda c: kernelbench("build", c, root / c.name, arguments), chosen))
    build_s = time.monotonic() - start
    rows = {c.name: kernelbench("evaluate", c, root / c.name, arguments) for c in chosen}
    seconds = time.monotonic() - start
    return {
        "rows": rows,
        "builds": [b["seconds"] for b in built],
        "build_s": build_s,
        "seconds": seconds,
        **rate(len(chosen), start),
        "ours": ours_too,
    }
