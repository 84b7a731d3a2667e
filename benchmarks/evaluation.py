"""How fast and how repeatable evaluation is, against KernelBench's own, on this host.

Run from the repository root on a GPU host; sections can run one by one and share the results file:

    python -P benchmarks/evaluation.py --out benchmarks/results/evaluation.json host builds ours again latency
    python -P benchmarks/evaluation.py --kernelbench .external/KernelBench --out … sequential parallel summary
    python -P benchmarks/evaluation.py --out … repeatability same devices

``sequential`` evaluates with KernelBench's ``eval_kernel_against_ref`` in one fresh process a
candidate, ``parallel`` pre-builds on all cores first, as KernelBench's batch mode does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from evaluation_candidates import BenchmarkCandidate, candidates  # noqa: E402
from evaluation_devices import COPIES, devices, same  # noqa: E402
from evaluation_kernelbench import parallel, sequential  # noqa: E402
from evaluation_ours import CORRECTNESS_TRIALS, TIMING_TRIALS, again, latency, ours  # noqa: E402


def host(arguments: argparse.Namespace) -> dict[str, Any]:
    """What this was measured on."""
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return {
        "device": name,
        "devices": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": arguments.commit or commit.stdout.strip(),
        "correctness_trials": CORRECTNESS_TRIALS,
        "timing_trials": TIMING_TRIALS,
    }


def builds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds to build one ``load_inline`` candidate by each route, first and again."""
    from optimizer.evaluation.build.builder import LocalBuilder
    from optimizer.evaluation.build.cache import BuildCache
    from optimizer.evaluation.build.fast import FastRoute
    from optimizer.evaluation.build.request import BuildRequest, SourceFile
    from optimizer.evaluation.build.route import Route
    from optimizer.evaluation.build.stock import StockRoute
    from optimizer.evaluation.build.toolchain import detect_toolchain

    tools = detect_toolchain()
    found: dict[str, Any] = {}
    for kind in ("extension_h", "types_h", "load"):
        request = recorded_request(next(c for c in candidates() if c.name == f"silu_{kind}_correct"))
        for name in ("split", "slim", "stock") if kind == "extension_h" and arguments.all else ("split",):
            with tempfile.TemporaryDirectory() as root:
                headers = Path(arguments.scratch) / "headers"
                stock: Route = StockRoute(arch=tools.arch)
                route = stock if name == "stock" else FastRoute(tools, headers, split=name == "split")
                if name != "stock":  # the first build of a host makes precompiled headers beside
                    start = time.monotonic()
                    warm = BuildRequest(name="warm", files=tuple(_warm(f) for f in request.files), **_flags(request))
                    LocalBuilder(BuildCache(Path(root)), [route], "w").build(warm)
                    found.setdefault("first_build_of_a_host_s", round(time.monotonic() - start, 2))
                    for thread in [thread for thread in threading.enumerate() if thread.name == "headers"]:
                        thread.join()
                    found.setdefault("headers_ready_s", round(time.monotonic() - start, 2))
                builder = LocalBuilder(BuildCache(Path(root)), [route], tools.fingerprint)
                first, again = builder.build(request), builder.build(request)
                found[f"{kind}_{name}"] = {
                    "built": bool(first.library),
                    "first_s": round(first.seconds, 3),
                    "again_s": round(again.seconds, 4),
                    "log": "" if first.library else first.log[-1500:],
                }
                assert isinstance(request.files[0], SourceFile)
    return found


def _warm(file: Any) -> Any:
    import dataclasses

    return dataclasses.replace(file, text=file.text + "\n// warm\n")


def _flags(request: Any) -> dict[str, Any]:
    return {"cflags": request.cflags, "cuda_cflags": request.cuda_cflags, "with_cuda": request.with_cuda}


def recorded_request(candidate: BenchmarkCandidate) -> Any:
    """The build request that loading ``candidate`` would send."""
    from optimizer.evaluation.build.builder import BuildResult
    from optimizer.evaluation.build.extension import CandidateBuildError, install

    seen: list[Any] = []

    class Recorder:
        def build(self, request: Any) -> BuildResult:
            seen.append(request)
            return BuildResult(library="", route="recorded")

    install(Recorder())
    with contextlib.suppress(CandidateBuildError):
        exec(compile(candidate.source, candidate.name, "exec"), {"__name__": "candidate"})
    return seen[0]


def repeatability(arguments: argparse.Namespace) -> dict[str, Any]:
    """A/A promotions and the difference of two medians of one kernel in fresh processes."""
    script = REPOSITORY / "benchmarks" / "timing_repeatability.py"
    runs = [
        subprocess.run([sys.executable, "-P", str(script), "medians"], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (json.loads(run.stdout.strip().splitlines()[-1]) for run in runs)
    pairs = {name: abs(first[name] - second[name]) / min(first[name], second[name]) for name in first}
    same = subprocess.run([sys.executable, "-P", str(script), "same"], capture_output=True, text=True, check=True)
    return {
        "medians_us": [first, second],
        "differences": pairs,
        "median_difference": statistics.median(pairs.values()),
        "a_a": json.loads(same.stdout.strip().splitlines()[-1]),
    }


def summary(arguments: argparse.Namespace) -> dict[str, Any]:
    """Ratios and differing verdicts from what the results file holds."""
    results = json.loads(Path(arguments.out).read_text(encoding="utf-8"))
    mine, theirs = results["ours"]["cold"], results["parallel"]
    other = {**results["sequential"]["rows"], **theirs["rows"]}
    verdicts = {name: (row["verdict"], other[name]["verdict"]) for name, row in mine["rows"].items() if name in other}
    expected = {candidate.name: candidate.expected for candidate in candidates()}
    return {
        "as_expected": sum(row["verdict"] == expected[name] for name, row in mine["rows"].items()),
        "compared_verdicts": len(verdicts),
        "ours_per_hour": mine["per_hour"],
        "sequential_per_hour": results["sequential"]["per_hour"],
        "parallel_per_hour": theirs["per_hour"],
        "against_sequential": round(mine["per_hour"] / results["sequential"]["per_hour"], 1),
        "against_parallel": round(theirs["ours"]["per_hour"] / theirs["per_hour"], 1),
        "verdicts": dict(Counter(row["verdict"] for row in mine["rows"].values())),
        "differing": {name: pair for name, pair in verdicts.items() if pair[0] != pair[1]},
    }


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    section.__name__: section
    for section in (
        host,
        builds,
        ours,
        again,
        latency,
        sequential,
        parallel,
        repeatability,
        same,
        devices,
        summary,
    )
}


def main() -> None:
    """Run the named sections and merge them into the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=list(SECTIONS))
    parser.add_argument("--out", required=True)
    parser.add_argument("--kernelbench", default=".external/KernelBench")
    parser.add_argument("--scratch", default=str(Path(tempfile.gettempdir()) / "htam-benchmark"))
    parser.add_argument("--commit", default="")
    parser.add_argument("--all", action="store_true", help="every candidate where a sample is the default")
    parser.add_argument("--seats", type=int, default=0, help="evaluations on a device at a time")
    parser.add_argument("--copies", type=int, default=COPIES, help="of each of the 27 candidates of devices")
    parser.add_argument("--match", default="", help="devices: tuning jobs with this pattern in their names")
    parser.add_argument("--built", action="store_true", help="devices: tuning libraries are in the cache")
    parser.add_argument("--devices", type=int, nargs="*", default=[], help="same: CUDA device indices")
    arguments = parser.parse_args()
    out = Path(arguments.out)
    for name in arguments.sections:
        results = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        results[name] = SECTIONS[name](arguments)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(results[name])[:1500], flush=True)


if __name__ == "__main__":
    main()
