"""How long raw logs of a million steps take to become a published memory, by stage.

    python -P benchmarks/memory_raw.py [STEPS] [--folder FOLDER] [--workers N]

Writes run directories (``synthetic_logs.py`` tells their sizes and repetitions, those of five public logs), then
reads, describes, groups, links, judges and publishes them. Vectors cost nothing here: encoding is measured elsewhere
(``benchmarks/clustering.py``). Memory is the largest sum of what this process and its workers held, looked at twice a
second.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]


@dataclass(slots=True)
class Watch:
    """Wall and processor seconds by stage, and the largest resident memory of the whole process tree in GiB."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    peak_gib: dict[str, float] = field(default_factory=dict)
    _stage: str = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        self._stage, wall, cpu = name, time.perf_counter(), _cpu()
        yield
        self.wall[name], self.cpu[name] = time.perf_counter() - wall, _cpu() - cpu
        print(f"{name:10} {self.wall[name]:8.1f} s  {self.cpu[name]:8.1f} s of processor", flush=True)

    def sample(self, stop: threading.Event) -> None:
        """Look at the memory until told to stop."""
        while not stop.wait(0.5):
            held = sum(_resident(pid) for pid in (os.getpid(), *_children())) / 2**30
            self.peak_gib[self._stage] = max(held, self.peak_gib.get(self._stage, 0.0))


def _cpu() -> float:
    """Processor seconds of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def _children() -> list[int]:
    return [int(pid) for pid in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def measured(logs: Path, store: Path, workers: int) -> dict[str, Any]:
    """Build and publish the logs, stage by stage as ``builder.build`` does."""
    from synthetic_drafts import InstantEmbedder

    from artifacts.memory.store import MemoryStore
    from builder import build
    from builder.drafting import draft_logs
    from builder.logs.discover import discover

    settings, embedder, watch = build.BuildSettings(name="synthetic", workers=workers), InstantEmbedder(), Watch()
    stop = threading.Event()
    sampler = threading.Thread(target=watch.sample, args=(stop,))
    sampler.start()
    with watch.stage("draft"):
        drafted = list(draft_logs(discover([logs]), workers=workers))
    with watch.stage("gather"):
        drafts = build.gather(drafted)
        drafted = [log.without_rows() for log in drafted]
    texts = len(drafts["plan"].unique())
    with watch.stage("group"):
        labels = build.group(drafts, embedder, settings)
    with watch.stage("link"):
        memory = build.link(drafts, labels, drafted, embedder, settings)
    del drafts, labels
    with watch.stage("judge"):
        memory = build.judge(memory, settings)
    with watch.stage("publish"):
        version = build.publish(memory, MemoryStore(str(store)))
    stop.set()
    sampler.join()
    return {
        "version": version.version,
        "transitions": len(memory),
        "distinct_texts": texts,
        "strategies": len(memory.strategies),
        "quarantined": sum(len(log.quarantined) for log in drafted),
        "wall_s": watch.wall,
        "cpu_s": watch.cpu,
        "total_s": sum(watch.wall.values()),
        "total_cpu_s": sum(watch.cpu.values()),
        "peak_gib": watch.peak_gib,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the logs are written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep-results", action="store_true", help="write benchmarks/results/memory_raw.json")
    arguments = parser.parse_args()
    from results_file import host, write_results
    from synthetic_logs import write_runs

    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)) / f"raw-{arguments.steps}"
        begun = time.perf_counter()
        held = write_runs(folder, arguments.steps, arguments.workers)
        print(f"logs       {time.perf_counter() - begun:8.1f} s  {held}", flush=True)
        before = host()
        result = measured(folder, Path(temporary) / "store", arguments.workers)
    print(result)
    if arguments.keep_results:
        write_results("memory_raw", {"logs": held, "workers": arguments.workers, "before": before, **result})


if __name__ == "__main__":
    main()
