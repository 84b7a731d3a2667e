"""Techniques of kernels by program against labels by hand: precision and recall of each.

    python -P benchmarks/techniques.py [--strangers LABELS --index FILE] [--write]

The labels, ``{sha256 of a candidate: [technique, ...]}``, lie in benchmarks/techniques_labels.json. ``shipped``: 62
kernels of the shipped logs, labelled before the program read them; the rules were then fitted to these kernels.
``checked`` and ``later``: answers of the experiment on moves (moves-h200), labelled for the ten techniques of CHECKED
alone. ``checked`` is the half of the first 120 that seed 14 drew, labelled before the rules of
artifacts/features/conduct.py and values.py were written; its misses were looked at while they were. ``later`` are 22
of the other half, labelled once the rules stood and before these had read them; most misses were then mended. Kernels
whose source is not in the tree are left out and counted.

``--strangers`` names labels of kernels that others wrote, whose sources a JSON list of ``{"sha", "source"}`` holds; of
them only figures are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import write_results  # noqa: E402

from artifacts.features.techniques import Technique, techniques  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402

LABELS = REPOSITORY / "benchmarks" / "techniques_labels.json"
CHECKED = (
    Technique.WARP_ROLES,
    Technique.PERSISTENT,
    Technique.PREFETCH,
    Technique.SPLIT_K,
    Technique.L2_ORDER,
    Technique.HELD_ROW,
    Technique.ONE_PASS,
    Technique.PIPELINE,
    Technique.SPLIT_PRECISION,
    Technique.SHARED_REDUCTION,
)
"""What the labels of the checked kernels name; of other techniques they say nothing."""


def shipped() -> dict[str, str]:
    """Source of each candidate of the shipped logs, by its hash."""
    logs = [RunLog.open(path) for path in REPOSITORY.glob("examples/logs/*") if RunLog.is_run(path)]
    return {sha256: log.candidate(sha256) for log in logs for sha256 in log.candidates()}


def scores(
    labels: Mapping[str, list[str]], sources: Mapping[str, str], named_by: Iterable[Technique] = Technique
) -> dict[str, Any]:
    """Counts, precision and recall of each technique that either side names, and over all of them.

    Args:
        labels: techniques of each kernel by hand.
        sources: of kernels; a label without a source is counted under ``not_found`` and otherwise left out.
        named_by: the techniques that the labels name where they are there.
    """
    table: dict[str, Any] = {}
    there = {sha: set(named) for sha, named in labels.items() if sha in sources}
    pairs = [(named, {str(one) for one in techniques(sources[sha])}) for sha, named in there.items()]
    for name in named_by:
        right = sum(name in named and name in found for named, found in pairs)
        table[name] = _row(right, sum(name in found for _, found in pairs), sum(name in named for named, _ in pairs))
    kept = {name: row for name, row in table.items() if row["labelled"] or row["found"]}
    total = _row(*(sum(row[key] for row in kept.values()) for key in ("right", "found", "labelled")))
    return {"kernels": len(there), "not_found": len(labels) - len(there), "all": total, "techniques": kept}


def _row(right: int, found: int, labelled: int) -> dict[str, Any]:
    precision = round(right / found, 3) if found else None
    recall = round(right / labelled, 3) if labelled else None
    return {"labelled": labelled, "found": found, "right": right, "precision": precision, "recall": recall}


def main() -> None:
    """Score and print one row a technique."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strangers", type=Path)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results/techniques.json")
    options = parser.parse_args()
    labels, found = json.loads(LABELS.read_text("utf-8")), shipped()
    result = {"shipped": scores(labels["shipped"], found)}
    result |= {whose: scores(labels[whose], found, CHECKED) for whose in ("checked", "later")}
    if options.strangers:
        sources = {row["sha"]: row["source"] for row in json.loads(options.index.read_text("utf-8"))}
        result["strangers"] = scores(json.loads(options.strangers.read_text("utf-8")), sources)
    for whose, table in result.items():
        print(f"{whose}: {table['kernels']} kernels, {table['not_found']} more labelled ones are not in the tree")
        for name, row in [*table["techniques"].items(), ("all", table["all"])]:
            counts = f"labelled {row['labelled']:4} found {row['found']:4}"
            print(f"  {name:18} {counts} precision {row['precision']} recall {row['recall']}")
    if options.write:
        print(f"written to {write_results('techniques', result).name}")


if __name__ == "__main__":
    main()
