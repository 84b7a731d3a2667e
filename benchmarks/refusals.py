"""What the static guard refuses in a collection of kernels, by kind, with a judgement for each kind.

    python -P benchmarks/refusals.py PATH... [--json benchmarks/results/refusals.json] [--tasks KERNELBENCH]

A PATH is a folder of ``.py`` files or a JSON list of objects with ``source`` and, where known, ``origin``, ``level``,
``problem`` and ``claimed.correct``, the verdict of KernelBench's own evaluator. Files that define no ``ModelNew``, or
are written in a language that the project does not build, are counted and left out, and of those without a kernel of
their own that alone is told. ``refusals.toml`` holds the judgements; a kind without one makes the exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runner import finite, host

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.static import check_files, check_source

JUDGEMENTS = Path(__file__).with_suffix(".toml")
_OTHER_LANGUAGES = re.compile(r"^\s*(?:import|from)\s+(tilelang|cutlass|cupy|numba|cute)\b", re.MULTILINE)
_COMPILED = re.compile(r"#\s*include|__global__|torch::Tensor|at::Tensor|PYBIND11")
_ORIGIN = re.compile(r"[@:#]")


def kernels(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Everything under the paths, with ``origin`` and ``source``."""
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.py")):
                yield {"origin": f"{path.name}:{file.relative_to(path)}", "source": file.read_text(encoding="utf-8")}
        else:
            yield from json.loads(path.read_text(encoding="utf-8"))


def task_sources(checkout: Path | None) -> dict[tuple[int, int], str]:
    """KernelBench's tasks by level and number."""
    if checkout is None:
        return {}
    found = {}
    for file in checkout.glob("**/level[123]/*.py"):
        number = file.name.partition("_")[0]
        if number.isdigit():
            found[int(file.parent.name[-1]), int(number)] = file.read_text(encoding="utf-8")
    return found


def refusals(kernel: dict[str, Any], task: str) -> list[GuardFinding]:
    """Fatal findings in a candidate's Python and in the C++ and CUDA texts that it holds."""
    source = kernel["source"]
    found = [*check_source(source, "cuda", task)]
    for text in compiled_texts(source):
        found += check_files([("candidate.cu", text)])
    return [finding for finding in found if finding.fatal]


def compiled_texts(source: str) -> list[str]:
    """Texts in the source that look like what a compiler is given."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text for text in texts if _COMPILED.search(text)]


class Table:
    """Counts of candidates by kind of refusal.

    Args:
        kinds: of the judgement file, in order: ``rule``, ``judgement``, ``reason``, perhaps ``message`` (a pattern).
    """

    def __init__(self, kinds: list[dict[str, str]]) -> None:
        self.kinds = kinds
        self.counts = [Counter[str]() for _ in kinds]
        self.unjudged: Counter[str] = Counter()

    def add(self, kernel: dict[str, Any], found: list[GuardFinding]) -> None:
        """Count a refused candidate once for each kind."""
        claimed = (kernel.get("claimed") or {}).get("correct")
        places = {self._place(finding) for finding in found}
        for place in (place for place in places if isinstance(place, int)):
            self.counts[place]["candidates"] += 1
            self.counts[place]["alone"] += len(places) == 1
            self.counts[place]["claimed_correct"] += bool(claimed)
        self.unjudged.update(str(place) for place in places if not isinstance(place, int))

    def _place(self, finding: GuardFinding) -> int | str:
        for place, kind in enumerate(self.kinds):
            if kind["rule"] == finding.rule and re.search(kind.get("message", ""), finding.message):
                return place
        return f"{finding.rule}: {finding.message}"

    def rows(self) -> list[dict[str, Any]]:
        """Kinds that occur, the most frequent first."""
        names = ("candidates", "alone", "claimed_correct")
        rows = [
            kind | {name: count[name] for name in names} for kind, count in zip(self.kinds, self.counts, strict=True)
        ]
        return sorted((row for row in rows if row["candidates"]), key=lambda row: -int(row["candidates"]))


def examine(paths: list[Path], checkout: Path | None) -> dict[str, Any]:
    """The table and how many kernels it is of."""
    tasks = task_sources(checkout)
    table = Table(tomllib.loads(JUDGEMENTS.read_text(encoding="utf-8"))["kind"])
    sources: dict[str, Counter[str]] = {}
    for kernel in kernels(paths):
        count = sources.setdefault(_ORIGIN.split(kernel["origin"])[0], Counter())
        count["files"] += 1
        if "class ModelNew" not in kernel["source"]:
            count["without ModelNew"] += 1
        elif language := _OTHER_LANGUAGES.search(kernel["source"]):
            count[f"in {language[1]}"] += 1
        else:
            _judge(kernel, tasks, table, count)
    return {
        "sources": {name: dict(count) for name, count in sorted(sources.items())},
        "total": dict(sum(sources.values(), Counter())),
        "refusals": table.rows(),
        "unjudged": dict(table.unjudged),
    }


def _judge(kernel: dict[str, Any], tasks: dict[tuple[int, int], str], table: Table, count: Counter[str]) -> None:
    count["candidates"] += 1
    task = tasks.get((kernel.get("level") or 0, kernel.get("problem") or 0), "")
    found = refusals(kernel, task)
    bare = [finding for finding in found if finding.rule == "no_kernel"]
    count["without own kernel"] += bool(bare)
    count["refused"] += bool(found)
    if found:
        table.add(kernel, bare or found)


def show(figures: dict[str, Any]) -> None:
    """Print the table."""
    print(json.dumps(figures["total"]))
    print(f"{'candidates':>10} {'alone':>6} {'claimed':>8}  judgement  kind")
    for row in figures["refusals"]:
        kind = " ".join(filter(None, (row["rule"], row.get("message", ""))))
        counts = f"{row['candidates']:>10} {row['alone']:>6} {row['claimed_correct']:>8}"
        print(f"{counts}  {row['judgement']:9}  {kind[:60]}: {row['reason']}")
    for kind, number in figures["unjudged"].items():
        print(f"{number:>10}  no judgement: {kind}")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tasks", type=Path, help="a checkout of KernelBench")
    options = parser.parse_args()
    figures = examine(options.paths, options.tasks)
    show(figures)
    if options.json:
        text = json.dumps({"host": host()} | finite(figures), indent=1)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return 1 if figures["unjudged"] else 0


if __name__ == "__main__":
    sys.exit(main())
