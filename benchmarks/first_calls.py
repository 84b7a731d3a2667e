"""What first answers reach, arm by arm: ``python -P benchmarks/first_calls.py ARM=RESULTS… --out NAME …``.

RESULTS are files of ``python -m optimizer.evaluation.worker``, of jobs named SUITE/LEVEL/TASK and more. An arm named
several times was asked several times: the geometric mean of its speedups over eager counts for a task, a failure as 1.
Prints and writes to benchmarks/results/NAME.json each arm's speedups and the ratio of each pair of arms over the tasks
that both have.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Container
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.codec import decode  # noqa: E402
from artifacts.measurement import Measurement  # noqa: E402
from pipeline.report.figures import pair  # noqa: E402

Draws = dict[str, list[float]]
"""Task → a speedup for each time that it was asked."""


def main() -> None:
    """Print all pairs and write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", metavar="ARM=RESULTS")
    parser.add_argument("--out", required=True, help="name of the result file, without ending")
    parser.add_argument("--measured-at", required=True, help="commit whose evaluation measured")
    parser.add_argument("--device", required=True, help="device, driver and versions")
    parser.add_argument("--only", default="", metavar="TASK,…", help="leave out all other tasks")
    options = parser.parse_args()
    wanted = frozenset(filter(None, options.only.split(",")))
    arms: dict[str, Draws] = {}
    for name, _, file in (text.partition("=") for text in options.results):
        merge(arms.setdefault(name, {}), Path(file), wanted)
    figures: dict[str, Any] = {"measured_at_commit": options.measured_at, "device": options.device, "speedups": arms}
    figures["pairs"] = {f"{one}|{two}": compared(arms, one, two) for one, two in itertools.combinations(arms, 2)}
    write_results(options.out, figures)


def merge(arm: Draws, file: Path, wanted: Container[str]) -> None:
    """Add the speedups of ``file`` to those of ``arm``."""
    found = defaultdict(list, arm)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        task = row["job_id"].split("/")[2]
        if not wanted or task in wanted:
            found[task].append(decode(Measurement, row["measurement"]).speedup("eager") or 1.0)
    arm.update(found)


def compared(arms: dict[str, Draws], one: str, two: str) -> dict[str, Any]:
    """The ratio of two arms with its interval; printed too."""
    means = [{task: geometric_mean(draws) for task, draws in arms[arm].items()} for arm in (one, two)]
    both = pair(*means)
    if both is None:
        raise SystemExit(f"{one} and {two} share no task")
    print(
        f"{one}/{two}: {both.ratio:.2f} [{both.low or 0:.2f}, {both.high or 0:.2f}] over {both.tasks} tasks, "
        f"{both.wins} wins {len(both.losses)} losses"
    )
    return asdict(both)


if __name__ == "__main__":
    main()
