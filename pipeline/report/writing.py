"""From what the user names to a written page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from artifacts.codec import decode
from artifacts.errors import ArtifactError, BadInputError
from artifacts.memory.htg import Memory
from artifacts.memory.shipped import load_memory
from artifacts.runlog import RunLog
from artifacts.trajectory import Quarantined
from pipeline.report import page
from pipeline.report.compare_page import compare_page
from pipeline.report.lesson import lesson_of, names_of
from pipeline.report.memory_page import memory_page
from pipeline.report.run_page import run_page
from pipeline.report.run_view import read_run


def runs_among(targets: Sequence[str]) -> list[Path]:
    """Run directories among ``targets``; empty when the one target is a memory.

    Raises:
        BadInputError: a path that is no run, or a memory among several targets.
    """
    paths = [Path(target) for target in targets]
    runs = [path for path in paths if RunLog.is_run(path)]
    if len(runs) == len(paths):
        return runs
    wrong = next(path for path in paths if path not in runs)
    if len(targets) > 1 or wrong.exists() or "/" in str(wrong):
        raise BadInputError(f"{wrong} is no run directory", "name run directories, or one memory NAME[@VERSION]")
    return []


def write_run(path: Path, out: Path | None, store: str = "", learned: str = "") -> Path:
    """Write the page of one run, by default ``report.html`` inside it.

    Args:
        store: where the run's memory gives directions their names.
        learned: a memory of ``store`` built with this run's log; the page then shows what it changed.

    Raises:
        ArtifactError: ``learned`` is not there.
    """
    own = memory_of(store, path)
    view = read_run(path, names_of(own) if own else {})
    lesson = None
    if learned:
        if own is None:
            raise BadInputError(f"{path} used no memory that {store} holds", "leave --learned out")
        lesson = lesson_of(own, load_memory(store, learned))
    return page.write(out or path / "report.html", run_page(view, lesson))


def write_comparison(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page that compares several runs, by default ``comparison.html`` beside the first."""
    views = [read_run(path) for path in paths]
    return page.write(out or paths[0].parent / "comparison.html", compare_page(views))


def write_memory(store: str, reference: str, out: Path | None, work: str = ".htam") -> Path:
    """Write the page of a memory, by default ``NAME-VERSION.html`` here.

    Args:
        work: work folder of the build, where the quarantined records are; elsewhere only their number is known.
    """
    memory = load_memory(store, reference)
    target = out or Path(f"{memory.manifest.name}-{memory.manifest.version}.html")
    return page.write(target, memory_page(memory, quarantined(Path(work), memory.reference)))


def quarantined(work: Path, reference: str) -> list[Quarantined] | None:
    """Records that the build of ``reference`` could not read; None where its work folder is not at hand."""
    path = work / "quarantine" / f"{reference}.jsonl"
    if not path.is_file():
        return None
    return [decode(Quarantined, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def memory_of(store: str, run: Path) -> Memory | None:
    """The memory that a run used, from ``store`` or from where the run found it.

    None where it used none, or it is at hand in neither: the run is complete without it.
    """
    manifest = RunLog.open(run).manifest
    reference = manifest.get("memory")
    if not isinstance(reference, str) or not reference:
        return None
    for place in dict.fromkeys([store, str(manifest.get("store") or "")]):
        try:
            if place:
                return load_memory(place, reference)
        except ArtifactError:
            continue
    return None
