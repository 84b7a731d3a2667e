"""How fast and how repeatable evaluation is, against KernelBench's own, on this host.

Run from the repository root on a GPU host; sections can run one by one and share the results file:

    python -P benchmarks/evaluation.py --out benchmarks/results/evaluation.json host builds ours again
    python -P benchmarks/evaluation.py --kernelbench .external/KernelBench --out … sequential parallel summary
    python -P benchmarks/evaluation.py --out … repeatability devices

``sequential`` evaluates with KernelBench's ``eval_kernel_against_ref`` in one fresh process a
candidate, ``parallel`` pre-builds on all cores first, as KernelBench's batch mode does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from evaluation_candidates import BenchmarkCandidate, candidates, triton_of_size  # noqa: E402
from profile_candidates import CANDIDATES as PROFILED  # noqa: E402

from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402

CORRECTNESS_TRIALS = 5
TIMING_TRIALS = 100
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


def ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """All candidates through the worker's evaluator, empty cache."""
    cache = Path(arguments.scratch) / "ours"
    shutil.rmtree(cache, ignore_errors=True)
    return {"cold": evaluate_ours(candidates(), cache, arguments)}


def again(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same candidates once more with all libraries built, and how far the two times of each are apart."""
    second = evaluate_ours(candidates(), Path(arguments.scratch) / "ours", arguments)
    first = json.loads(Path(arguments.out).read_text(encoding="utf-8"))["ours"]["cold"]
    return {**second, "median_difference": difference(first["rows"], second["rows"])}


def difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Median over the candidates of how far their two times are apart."""
    pairs = [(row["median_us"], second[name]["median_us"]) for name, row in first.items()]
    return float(statistics.median(abs(one - other) / min(one, other) for one, other in pairs if one and other))


def evaluate_ours(chosen: list[BenchmarkCandidate], cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Verdicts, seconds and candidates per hour of our evaluator."""
    from optimizer.evaluation.local import LocalEvaluator, LocalSettings

    settings = EvaluationSettings(seeds=CORRECTNESS_TRIALS, max_samples=TIMING_TRIALS, min_samples=TIMING_TRIALS)
    jobs = [
        EvaluationJob(
            job_id=c.name, task_id=c.name, task_source=c.task, candidate_source=c.source, backend="cuda", seed=7,
            settings=settings,
        )
        for c in chosen
    ]  # fmt: skip
    start = time.monotonic()
    evaluator = LocalEvaluator(settings=LocalSettings(devices=arguments.devices, cache=cache))
    rows: dict[str, Any] = {}
    for name, measurement in evaluator.evaluate(jobs):
        rows[name] = {
            "verdict": measurement.outcome.value,
            "at_s": round(time.monotonic() - start, 2),
            "build_s": round(measurement.build_s, 2),
            "gpu_s": round(measurement.gpu_s, 2),
            "median_us": measurement.timing.median_us if measurement.timing else None,
            "error": measurement.error[:300],
            "notes": list(measurement.notes)[:4],
            "stages_s": dict(evaluator.seconds.get(name, {})),
        }
        print(name, rows[name]["verdict"], rows[name]["at_s"], measurement.error[:120].replace("\n", " "), flush=True)
    evaluator.close()
    found = {"candidates": len(jobs), "seconds": time.monotonic() - start, "rows": rows, **rate(len(jobs), start)}
    return {**found, "stages_s": mean_stages(rows)}


def mean_stages(rows: dict[str, Any]) -> dict[str, float]:
    """Mean seconds by stage of a correct candidate."""
    judged = [row["stages_s"] for row in rows.values() if row["verdict"] == "correct"]
    names = {name for stages in judged for name in stages}
    return {name: round(statistics.mean(stages.get(name, 0.0) for stages in judged), 3) for name in sorted(names)}


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds from a Triton source to its verdict: one of the example tasks, then inputs of growing size."""
    from optimizer.evaluation.local import LocalEvaluator, LocalSettings

    softmax = (REPOSITORY / "examples" / "tasks" / "cuda" / "row_softmax.py").read_text(encoding="utf-8")
    work = {f"row_softmax {turn}": (softmax, f"{PROFILED['row_softmax']}\n# {turn}\n") for turn in range(3)}
    work |= {f"silu of {size} MiB": triton_of_size(size) for size in (16, 64, 256, 1024)}
    evaluator = LocalEvaluator(settings=LocalSettings(cache=Path(arguments.scratch) / "latency"))
    list(evaluator.evaluate(()))  # processes start before the watch does
    found: dict[str, Any] = {}
    for name, (task, source) in work.items():
        job = EvaluationJob(
            job_id=name, task_id=name, task_source=task, candidate_source=source, backend="cuda", seed=len(found)
        )
        start = time.monotonic()
        ((_, measurement),) = evaluator.evaluate([job])
        found[name] = {"verdict": measurement.outcome.value, "seconds": round(time.monotonic() - start, 2)}
        found[name]["stages_s"] = dict(evaluator.seconds.get(name, {}))
        print(name, found[name]["verdict"], found[name]["seconds"], flush=True)
    evaluator.close()
    return found


def rate(count: int, start: float) -> dict[str, float]:
    """Candidates per hour since ``start``."""
    return {"per_hour": round(count * 3600 / (time.monotonic() - start), 1)}


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


def devices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Throughput with one device and with all of them, builds cached beforehand."""
    import torch

    cache = Path(arguments.scratch) / "ours"
    chosen = [c for c in candidates() if c.expected == "correct"] * 2
    named = [
        BenchmarkCandidate(name=f"{c.name}_{i}", kind=c.kind, expected=c.expected, task=c.task, source=c.source)
        for i, c in enumerate(chosen)
    ]
    evaluate_ours(chosen[: len(chosen) // 2], cache, arguments)
    found: dict[str, Any] = {}
    for count in (1, torch.cuda.device_count()):
        arguments.devices = tuple(range(count))
        found[str(count)] = evaluate_ours(named, cache, arguments)
    counts = sorted(found, key=int)
    return {**found, "gain": found[counts[-1]]["per_hour"] / found[counts[0]]["per_hour"]}


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
    for section in (host, builds, ours, again, latency, sequential, parallel, repeatability, devices, summary)
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
    arguments = parser.parse_args()
    arguments.devices = ()
    out = Path(arguments.out)
    for name in arguments.sections:
        results = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        results[name] = SECTIONS[name](arguments)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(results[name])[:1500], flush=True)


if __name__ == "__main__":
    main()
