"""What a memory costs: from logs, at 10^4 to 10^6 transitions, to load, and to ask.

    python -P benchmarks/memory.py growth [SIZE…]     raw transitions to published memory, load, one selection
    python -P benchmarks/memory.py logs PATH…         raw logs to published memory, and again with one log changed
    python -P benchmarks/memory.py raw STEPS          copies of the shipped runs to published memory, two processes

Each size runs in a process of its own so that its peak memory is its own. Copies have other names in their sources,
so that each is parsed anew; vectors cost nothing there. ``growth`` starts from described steps, without embedding.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import LOGS, write_results  # noqa: E402

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


NAMES = re.compile(r"(?<![.\w\\])(?:acc|c|col|i|idx|j|k|lane|m|n|out|row|s|sum|tid|v|val|w|x|y)\b")
RAW_SHARDS = 2


def raw(steps: int) -> None:
    """Build from copies of the shipped runs."""
    from synthetic_transitions import InstantEmbedder

    from artifacts.memory.store import MemoryStore
    from builder import build

    build.named_embedder = lambda name: InstantEmbedder()  # type: ignore[assignment,attr-defined]
    stages, cpu = {}, {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        wall, busy = time.perf_counter(), processor_seconds()
        yield
        stages[name], cpu[name] = time.perf_counter() - wall, processor_seconds() - busy

    with tempfile.TemporaryDirectory() as folder:
        settings = build.BuildSettings(name="raw", cache=Path(folder) / "cache")
        held = write_copies(Path(folder) / "logs", steps)
        with stage("describe"), ProcessPoolExecutor(RAW_SHARDS, multiprocessing.get_context("spawn")) as pool:
            shards = build.read([Path(folder) / "logs"])
            described = list(pool.map(build.describe, shards, itertools.repeat(settings)))
        with stage("cluster, link"):
            corpus = build.gathered(described)
            memory = build.link(corpus, build.cluster(corpus, settings), settings)
        with stage("validate"):
            memory = build.validate(memory, settings)
        with stage("publish"):
            version = build.publish(memory, MemoryStore(f"{folder}/store"), force=True)
    largest = [resource.getrusage(who).ru_maxrss / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    rows = {"logs": held, "wall_s": stages, "cpu_s": cpu, "transitions": len(memory), "version": version.version}
    peak = largest[0] + RAW_SHARDS * largest[1]
    write_results(
        "memory_copies", rows | {"peak_gib_at_most": peak, "ms_a_source": 1000 * cpu["describe"] / held["sources"]}
    )


def write_copies(folder: Path, steps: int) -> dict[str, int]:
    """Copies of the shipped runs with at least ``steps`` steps in all; returns how many steps and sources they have."""
    runs = sorted(path.parent for path in LOGS.rglob("manifest.json"))
    written, sources = 0, set[str]()
    for number in itertools.count():
        for run in runs:
            if written >= steps:
                return {"steps": written, "sources": len(sources)}
            count, names = copied(run, folder / f"{number:05d}-{run.parent.name}-{run.name}", number)
            written += count
            sources |= names
    raise AssertionError("copies never end")


def copied(run: Path, target: Path, number: int) -> tuple[int, set[str]]:
    """Copy the steps of one run, their sources under other names; returns how many there are, and the sources."""
    from artifacts.candidate import Candidate
    from artifacts.run_files import CandidateFiles, event_lines, events_file

    (target / "candidates").mkdir(parents=True)
    files, names = CandidateFiles(run), {}
    for name in files.identities():
        copy = Candidate(NAMES.sub(rf"\g<0>{number}", files.read(name).decode()))
        names[name] = copy.sha256
        (target / "candidates" / f"{copy.sha256}.py").write_text(copy.source, encoding="utf-8")
    lines = [line.decode() for line in event_lines(events_file(run))]
    kept = [line for line in lines if re.search(r'"kind":"(?:step|task_started)"', line)]
    text = re.sub(r"\b[0-9a-f]{64}\b", lambda found: names.get(found[0], found[0]), "".join(kept))
    (target / "events.jsonl").write_text(text, encoding="utf-8")
    (target / "manifest.json").write_text((run / "manifest.json").read_text())
    return sum('"kind":"step"' in line for line in kept), set(names.values())


def processor_seconds() -> float:
    """Of this process and of its workers that have ended."""
    return sum(os.times()[:4])


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["growth", "logs", "raw", "size"])
    parser.add_argument("values", nargs="*")
    arguments = parser.parse_args()
    if arguments.part == "growth":
        growth([int(value) for value in arguments.values])
    elif arguments.part == "raw":
        raw(int(arguments.values[0]))
    elif arguments.part == "size":
        print(json.dumps(one_size(int(arguments.values[0]))))
    else:
        logs([Path(value) for value in arguments.values])


if __name__ == "__main__":
    main()
