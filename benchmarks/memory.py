"""What a memory costs: from logs, at 10^4 to 10^6 transitions, to load, and to ask.

    python -P benchmarks/memory.py growth [SIZE…]     raw transitions to published memory, load, one selection
    python -P benchmarks/memory.py logs PATH…         raw logs to published memory, and again with one log changed

Each size runs in a process of its own so that its peak memory is its own. Reading and describing real steps is measured
by ``logs`` alone; ``growth`` starts from described steps and leaves embedding out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import write_results  # noqa: E402

SIZES = (10_000, 100_000, 1_000_000)


def growth(sizes: list[int]) -> None:
    """Measure every size and print the table."""
    rows = []
    for size in sizes or SIZES:
        command = [sys.executable, "-P", __file__, "size", str(size)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows.append(json.loads(out.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    for small, large in itertools.pairwise(rows):
        ratio = large["build_cpu_s"] / small["build_cpu_s"]
        bound = large["transitions"] * math.log(large["transitions"])
        bound /= small["transitions"] * math.log(small["transitions"])
        print(
            f"{small['transitions']} -> {large['transitions']}: {ratio:.1f} times the time, n log n allows {bound:.1f}"
        )
    write_results("memory_growth", {"sizes": rows})


def one_size(size: int) -> dict[str, Any]:
    """Build, publish, load and ask a memory of ``size`` synthetic transitions."""
    from synthetic_transitions import InstantEmbedder, raw_transitions

    from artifacts.memory.attention import AttentionSettings, attend
    from artifacts.memory.store import MemoryStore
    from builder import build
    from builder.describe.logs import Corpus

    corpus, settings = Corpus(raw_transitions(size), ()), build.BuildSettings(name="synthetic", replay=False)
    build.named_embedder = lambda name: InstantEmbedder()  # type: ignore[assignment, attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        store = MemoryStore(folder)
        start, cpu_start = time.perf_counter(), time.process_time()
        labels = build.cluster(corpus, settings)
        grouped = time.perf_counter()
        memory = build.link(corpus, labels, settings)
        linked = time.perf_counter()
        store.publish(memory)
        published, build_cpu = time.perf_counter(), time.process_time() - cpu_start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        del memory, labels, corpus
        loads = []
        for _ in range(3):
            begun = time.perf_counter()
            loaded = store.load("synthetic")
            loads.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        asked = AttentionSettings()
        state = next(loaded.transitions()).state
        attend(loaded, (), state, asked).directions()
        first = time.perf_counter() - begun
        times, busy = [], []
        for _ in range(20):
            begun, cpu = time.perf_counter(), time.thread_time()
            view = attend(loaded, (), state, asked)
            scores = view.directions()
            times.append(time.perf_counter() - begun)
            busy.append(time.thread_time() - cpu)
        both = time.thread_time()
        view.strategies(scores[0].direction_id, 3)
        local = time.thread_time() - both
        size_mb = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet")) / 2**20
    return {
        "transitions": size,
        "group_s": grouped - start,
        "link_s": linked - grouped,
        "publish_s": published - linked,
        "build_s": published - start,
        "build_cpu_s": build_cpu,
        "peak_gib": peak,
        "files_mib": size_mb,
        "load_s": min(loads),
        "first_selection_s": first,
        "selection_ms": 1000 * statistics.median(times),
        "selection_cpu_ms": 1000 * statistics.median(busy),
        "strategies_cpu_ms": 1000 * local,
        "directions": len(loaded.directions),
        "strategies": len(loaded.strategies),
    }


def logs(paths: list[Path]) -> None:
    """Build from raw logs with an empty cache, then again with a full one."""
    from artifacts.memory.store import MemoryStore
    from builder.build import BuildSettings, build, publish

    with tempfile.TemporaryDirectory() as folder:
        settings = BuildSettings(name="logs", cache=Path(folder) / "cache")
        rows = []
        for run in ("from nothing", "remembered"):
            wall, cpu = time.perf_counter(), processor_seconds()
            built = build(paths, settings)
            version = publish(built.memory, MemoryStore(f"{folder}/store"), force=True)
            rows.append(
                {
                    "run": run,
                    "wall_s": time.perf_counter() - wall,
                    "cpu_s": processor_seconds() - cpu,
                    "load_average": os.getloadavg(),
                    "logs_read": len(built.read),
                    "logs_reused": len(built.reused),
                    "transitions": len(built.memory),
                    "quarantined": len(built.quarantined),
                    "version": version.version,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    write_results("memory_logs", {"runs": rows})


def processor_seconds() -> float:
    """Of this process and of its workers that have ended."""
    return sum(os.times()[:4])


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["growth", "logs", "size"])
    parser.add_argument("values", nargs="*")
    arguments = parser.parse_args()
    if arguments.part == "growth":
        growth([int(value) for value in arguments.values])
    elif arguments.part == "size":
        print(json.dumps(one_size(int(arguments.values[0]))))
    else:
        logs([Path(value) for value in arguments.values])


if __name__ == "__main__":
    main()
