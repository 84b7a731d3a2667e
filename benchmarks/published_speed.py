"""Verdicts an hour on candidates at published sizes, beside KernelBench's own evaluator in the same run.

    python -P benchmarks/published_speed.py CANDIDATES CHECKOUT [--limit-s S] [--sample N] [--out FILE]

CANDIDATES is a folder of ``LEVEL_PROBLEM_NAME.py`` files or a JSON list of ``{level, problem, source, kind}``. Ours
starts from an empty build cache; KernelBench's evaluator judges a drawn sample of the same candidates, each in a fresh
process, within its own limit. Every verdict is written as it comes (FILE, JSON lines), all without the words of errors
in published-speed.json. GPU idle share: what ``nvidia-smi`` samples as time in which no kernel ran. Needs torch, numpy
and the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from published_tasks import Results, Task, tasks_of, within  # noqa: E402 - a bare host has the checkout only
from runner import write_results  # noqa: E402

from artifacts.measurement import Measurement  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings  # noqa: E402
from pipeline.bench.crosscheck import verdict_of  # noqa: E402
from pipeline.bench.kernelbench import OtherVerdict  # noqa: E402

_PERIOD_MS = 200
_FIRST_S = 60.0
_VERDICTS = ("correct", "not correct")


@dataclass(frozen=True, slots=True)
class PublishedCandidate:
    """One candidate, its task, and what the person who drew it says of it."""

    name: str
    task: Task
    source: str
    kind: str


def candidates_of(path: Path, tasks: dict[tuple[int, int], Task]) -> list[PublishedCandidate]:
    """The candidates of a folder or a JSON list whose tasks the checkout has."""
    if path.is_dir():
        parts = [(file.stem.split("_", 2), file) for file in sorted(path.glob("*_*_*.py"))]
        entries = [
            {"level": level, "problem": problem, "kind": kind, "source": file.read_text(encoding="utf-8")}
            for (level, problem, kind), file in parts
        ]
    else:
        entries = json.loads(path.read_text(encoding="utf-8"))
    found = []
    for number, entry in enumerate(entries):
        task = tasks.get((int(entry["level"]), int(entry["problem"])))
        if task is not None:
            name = f"{number:03d} {task.name} {entry.get('kind', '')}".strip()
            found.append(PublishedCandidate(name, task, entry["source"], entry.get("kind", "")))
    return found


class DeviceUse:
    """Samples how busy the first CUDA device is, in a process of its own; nothing without ``nvidia-smi``."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        if command := shutil.which("nvidia-smi"):
            query = [command, "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
            self._process = subprocess.Popen(
                [*query, "-lms", str(_PERIOD_MS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdecimal():
                self._samples.append((time.monotonic(), float(line)))

    def idle_share(self, start: float, stop: float) -> float | None:
        """Share of the time between two moments in which no kernel ran; None without samples."""
        inside = [busy for moment, busy in self._samples if start <= moment <= stop]
        return round(1 - statistics.mean(inside) / 100, 3) if inside else None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def row_of(candidate: PublishedCandidate, found: Measurement, stages: dict[str, float]) -> dict[str, Any]:
    """A verdict of ours."""
    return {
        "side": "ours",
        "candidate": candidate.name,
        "kind": candidate.kind,
        "outcome": found.outcome.value,
        "stage": found.stage,
        "error": found.error[:300],
        "build_s": round(found.build_s, 2),
        "gpu_s": round(found.gpu_s, 2),
        "median_us": found.timing.median_us if found.timing else None,
        "reference_us": found.reference.median_us if found.reference else None,
        "doubts": [doubt.kind.value for doubt in found.doubts],
        "peak_bytes": dict(found.peak_bytes),
        "notes": list(found.notes)[:6],
        "stages_s": stages,
    }


def ours(candidates: Sequence[PublishedCandidate], options: argparse.Namespace, results: Results) -> dict[str, Any]:
    """All candidates through our evaluator, from an empty cache."""
    by_id = {candidate.name: candidate for candidate in candidates}
    settings = EvaluationSettings(run_timeout_s=60.0, baselines=())
    jobs = [
        EvaluationJob(
            job_id=name, task_id=each.task.name, task_source=each.task.source, candidate_source=each.source,
            backend=options.backend, seed=int.from_bytes(os.urandom(6), "big"), settings=settings,
        )
        for name, each in by_id.items()
    ]  # fmt: skip
    use, cut, done, built = DeviceUse(), False, [], None
    with tempfile.TemporaryDirectory(prefix="htam-cache-") as cache:
        start = time.monotonic()
        evaluator = LocalEvaluator(0, LocalSettings(cache=Path(cache), concurrent=options.concurrent))
        try:
            with within(options.limit_s):
                for name, found in evaluator.evaluate(jobs):
                    results.add(row_of(by_id[name], found, dict(evaluator.seconds.get(name, {}))))
                    done.append(time.monotonic())
                    if built is None and found.build_s > 1:
                        built = time.monotonic()
        except TimeoutError:
            cut = True
        seconds = time.monotonic() - start
        evaluator.close()
    use.close()
    stages: Counter[str] = Counter()
    for row in results.rows:
        stages.update(row["stages_s"])
    return {
        "candidates": len(jobs),
        "verdicts": len(done),
        "cut": cut,
        "seconds": round(seconds, 1),
        "per_hour": round(len(done) * 3600 / seconds, 1),
        "first_verdict_s": round(done[0] - start, 1) if done else None,
        "gpu_idle": {
            "how": "nvidia-smi utilization.gpu",
            "whole": use.idle_share(start, start + seconds),
            "first_minute": use.idle_share(start, start + min(_FIRST_S, seconds)),
            "since_first_library": None if built is None else use.idle_share(built, start + seconds),
        },
        "stages_s": {name: round(value, 1) for name, value in stages.most_common()},
        "outcomes": dict(Counter(row["outcome"] for row in results.rows)),
    }


def kernelbench(
    candidates: Sequence[PublishedCandidate], options: argparse.Namespace, results: Results, deadline: float
) -> dict[str, Any]:
    """A sample through KernelBench's own function, one after the other, each built in a fresh process.

    One that takes longer than it may counts in ``asked`` and ``seconds`` alone.
    """
    seconds: list[float] = []
    verdicts = 0
    for candidate in candidates:
        left = min(deadline - time.monotonic(), options.kernelbench_timeout_s)
        if left < 1:
            break
        start = time.monotonic()
        said = verdict_of(options.checkout, candidate.task.source, candidate.source, timeout_s=left)
        seconds.append(time.monotonic() - start)
        row = {"side": "kernelbench", "candidate": candidate.name, "seconds": round(seconds[-1], 1)}
        row |= _their_row(said, left)
        verdicts += row["outcome"] != "timeout"
        results.add(row)
    per_hour = round(verdicts * 3600 / sum(seconds), 1) if verdicts else None
    return {"asked": len(seconds), "verdicts": verdicts, "seconds": round(sum(seconds), 1), "per_hour": per_hour}


def _their_row(said: OtherVerdict | None, left: float) -> dict[str, Any]:
    if said is None:
        return {"outcome": "timeout", "error": f"more than {left:.0f} s", "median_us": None}
    outcome = {True: "correct", False: "not correct", None: "no verdict"}[said.correct]
    return {"outcome": outcome, "error": said.error[:300], "median_us": said.time_us}


def agreement(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of candidates of which both sides gave a verdict: where both say correct or neither does, and the others."""
    mine = {row["candidate"]: row["outcome"] for row in rows if row["side"] == "ours"}
    theirs = {row["candidate"]: row["outcome"] for row in rows if row["side"] != "ours" and row["outcome"] in _VERDICTS}
    both = [name for name in theirs if name in mine]
    same = [name for name in both if (mine[name] == "correct") == (theirs[name] == "correct")]
    apart = [{"candidate": name, "ours": mine[name], "kernelbench": theirs[name]} for name in both if name not in same]
    return {"both": len(both), "agree": len(same), "disagreements": apart}


def show(row: dict[str, Any]) -> str:
    """One line for people."""
    spent = row.get("gpu_s", row.get("seconds"))
    verdict = f"{row['candidate']:64} {row['outcome']:14}"
    return f"{row['at_s']:6.1f} {row['side']:11} {verdict} {spent:6} s  {row['error'][:120]}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", type=Path)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--count", type=int, default=0, help="draw so many candidates; all when 0")
    parser.add_argument("--concurrent", type=int, default=0, help="evaluations at a time; by cores when 0")
    parser.add_argument("--limit-s", type=float, default=400.0, help="of our side")
    parser.add_argument("--sample", type=int, default=10, help="candidates that KernelBench judges too; 0 for none")
    parser.add_argument("--kernelbench-limit-s", type=float, default=150.0)
    parser.add_argument("--kernelbench-timeout-s", type=float, default=120.0, help="for one candidate")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    folder = Path(os.environ.get("OUT", ROOT / "benchmarks" / "results"))
    parser.add_argument("--out", type=Path, default=folder / "published-speed.jsonl")
    options = parser.parse_args()
    tasks = {(task.level, task.problem): task for task in tasks_of(options.checkout, (1, 2, 3, 4))}
    candidates = candidates_of(options.candidates, tasks)
    draw = random.Random(options.seed)
    if options.count:
        candidates = draw.sample(candidates, min(options.count, len(candidates)))
    results = Results(options.out, show)
    summary: dict[str, Any] = {"ours": ours(candidates, options, results)}
    write(summary, results)
    if options.sample and options.backend == "cuda":
        judged = {row["candidate"] for row in results.rows}
        both = [candidate for candidate in candidates if candidate.name in judged]
        sample = draw.sample(both, min(options.sample, len(both)))
        deadline = time.monotonic() + options.kernelbench_limit_s
        summary["kernelbench"] = kernelbench(sample, options, results, deadline)
        if summary["kernelbench"]["per_hour"]:
            summary["ratio"] = round(summary["ours"]["per_hour"] / summary["kernelbench"]["per_hour"], 1)
        summary["agreement"] = agreement(results.rows)
    print(json.dumps(summary, indent=1))
    write(summary, results)


def write(summary: dict[str, Any], results: Results) -> None:
    """Keep the figures; what a candidate or its compiler said is text of others."""
    rows = [{name: value for name, value in row.items() if name not in ("error", "notes")} for row in results.rows]
    write_results("published-speed", summary | {"rows": rows})


if __name__ == "__main__":
    main()
