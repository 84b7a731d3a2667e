"""OpenEvolve's ``evolution_trace``: one parent-to-child transition a row (``.jsonl``, ``.jsonl.gz`` or ``.json``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.task_identity import task_at_path
from builder.logs.fields import Fields
from builder.logs.files import UnreadableError, json_lines, read_json
from builder.logs.gathering import Gathering, Run
from builder.logs.importers.openevolve import program_step
from builder.logs.logfile import LogFile
from builder.logs.probe import Probe


@dataclass(frozen=True, slots=True)
class EvolutionTrace:
    """Importer of traces."""

    name: str = "evolution-trace"
    version: int = 2
    summary: str = "OpenEvolve evolution_trace: one parent-to-child transition a row"

    def claims(self, probe: Probe) -> bool:
        """Rows with parent, child and the metrics of both."""
        return (probe.is_object or probe.is_array) and probe.has_keys(
            "parent_id", "child_id", "parent_metrics", "child_metrics"
        )

    def companions(self, path: Path) -> tuple[Path, ...]:
        """None: a file stands alone."""
        return ()

    def read(self, log: LogFile, books: Gathering) -> None:
        """One trajectory for the file; a parent that no row made before is a derived step."""
        name = log.path.parent.name
        run = Run(key="run", source=f"{self.name}/{name}", task=task_at_path(name))
        for line, value in _rows(log.path):
            with books.record(line):
                if isinstance(value, UnreadableError):
                    raise value
                row = Fields.of(value, "row")
                child = program_step(_side(row, "child"), books, line)
                parent_id = row.word("parent_id")
                if parent_id and not books.has(run, parent_id) and row.code("parent_code").strip():
                    books.add(run, program_step(_side(row, "parent"), books, line), derived=True)
                books.add(run, child)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if not path.name.endswith(".json"):
        yield from json_lines(path)
        return
    try:
        value = read_json(path)
    except UnreadableError as problem:
        yield 1, problem
        return
    rows = value.get("traces") if isinstance(value, dict) else value
    yield from enumerate(rows if isinstance(rows, list) else [value], start=1)


def _side(row: Fields, side: str) -> Fields:
    """One end of a transition as a program."""
    taken = {name: row.get(f"{side}_{name}") for name in ("id", "code", "metrics", "changes_description")}
    if side == "child":
        taken |= {name: row.get(name) for name in ("parent_id", "iteration", "generation", "artifacts")}
    return Fields(taken)
