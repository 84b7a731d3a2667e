"""How fast and how repeatable evaluation of small tasks is on this GPU host, from an empty build cache.

    python -P benchmarks/evaluation.py [--match REGEX] [--copies N]

``cold`` evaluates 41 candidates of elementwise operators and row sums, built in four ways, right, wrong and not
building; ``again`` the same with all libraries built, and how far the two times of each lie apart; ``same`` the right
ones against themselves, where each promotion is one by chance. Published sizes: ``published_speed.py``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from evaluation_candidates import BenchmarkCandidate, candidates
from runner import evaluated, median_difference, started, write_results

from optimizer.evaluation.job import EvaluationJob, EvaluationSettings

SETTINGS = EvaluationSettings(seeds=5, min_samples=100, max_samples=100, baselines=())
"""As many trials as KernelBench's evaluator makes by default."""


def main() -> None:
    """All three parts on one evaluator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="candidates with this pattern in their names")
    parser.add_argument("--copies", type=int, default=4, help="of each right candidate, against itself")
    options = parser.parse_args()
    chosen = [item for item in candidates() if re.search(options.match, item.name)]
    right = jobs_of([item for item in chosen if item.expected == "correct"])
    pairs = [
        replace(job, job_id=f"{job.job_id} {copy}", incumbent_source=job.candidate_source)
        for copy in range(options.copies)
        for job in right
    ]
    with tempfile.TemporaryDirectory(prefix="htam-evaluation-") as cache, started(Path(cache)) as evaluator:
        cold = evaluated(evaluator, jobs_of(chosen))
        again = evaluated(evaluator, jobs_of(chosen))
        same = evaluated(evaluator, pairs)
    expected = {item.name: item.expected for item in chosen}
    figures = {
        "cold": cold,
        "again": again,
        "as_expected": sum(row["verdict"] == expected[name] for name, row in cold["rows"].items()),
        "median_difference": median_difference(cold["rows"], again["rows"]),
        "same": promotions(same),
    }
    print(f"{cold['per_hour']:.0f} an hour from an empty cache, {again['per_hour']:.0f} built; {figures['same']}")
    write_results("evaluation", figures)


def jobs_of(chosen: Sequence[BenchmarkCandidate]) -> list[EvaluationJob]:
    """A job each."""
    return [
        EvaluationJob(
            job_id=item.name,
            task_id=item.name,
            task_source=item.task,
            candidate_source=item.source,
            backend="cuda",
            seed=7,
            settings=SETTINGS,
        )
        for item in chosen
    ]


def promotions(found: dict[str, Any]) -> dict[str, Any]:
    """How often a kernel was called faster than itself, and how far the two times of a pair lie apart."""
    rows = [row for row in found["rows"].values() if row["faster_than_incumbent"] is not None]
    ratios = sorted(row["incumbent_us"] / row["median_us"] for row in rows)
    return {
        "verdicts": dict(Counter(row["verdict"] for row in found["rows"].values())),
        "trials": len(rows),
        "promoted": sum(row["faster_than_incumbent"] for row in rows),
        "median_difference": statistics.median(abs(ratio - 1) for ratio in ratios) if ratios else None,
        "ratios": ratios[:1] + ratios[-1:],
    }


if __name__ == "__main__":
    main()
