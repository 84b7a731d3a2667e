"""OpenEvolve checkpoints: ``checkpoint_N/programs/<id>.json`` with parents and user-defined metrics.

SkyDiscover writes the same with the source under ``solution``.

Checkpoints of one run overlap; a program is read from the first that holds it. Metrics are whatever the
user's evaluator returned: a time, a speedup and a verdict are looked for under the names people use. Its
``evolution_trace`` holds one parent-to-child transition a row (``.jsonl``, ``.jsonl.gz`` or ``.json``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from artifacts.task import task_at_path
from artifacts.trajectory import Step
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields
from builder.read.files import (
    MAX_SOURCE_BYTES,
    Probe,
    UnreadableError,
    by_number,
    is_regular,
    json_lines,
    parse_json,
    read_json,
)
from builder.read.table import Enter, Rows, json_items, table
from builder.read.verdict import metrics_verdict

_CHECKPOINT = re.compile(r"^checkpoint_(\d{1,9})$")


def _claims(probe: Probe) -> bool:
    if {"metadata.json", "programs"} <= probe.entries:
        return True
    return any(_CHECKPOINT.match(name) for name in probe.entries) and any(_checkpoints(probe.path))


def _companions(path: Path) -> tuple[Path, ...]:
    return tuple(_programs(path))


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory for the run."""
    name = next((part for part in reversed(log.path.parts) if not _is_generic(part)), log.path.name)
    run = Run(key="run", source=f"{collector.log.format}/{name}", task=task_at_path(name))
    seen: set[str] = set()
    for number, file in enumerate(log.companions, start=1):
        if file.name in seen:
            continue
        seen.add(file.name)
        with collector.record(number):
            collector.add(run, _program(Fields.of(read_json(file, MAX_SOURCE_BYTES), "program"), collector, number))


def _program(record: Fields, collector: Collector, number: int) -> Step:
    """The step of one program.

    Raises:
        BadRecordError: it has no id or code, or metrics that tell neither a verdict nor a time.
    """
    identity, code = record.word("id"), record.code("solution", "code")
    if not identity or not code.strip():
        raise BadRecordError("no candidate: the program has no id or no code")
    index = record.integer("iteration_found", "generation", "iteration") or 0
    return collector.step(
        number,
        metrics_verdict(record.child("metrics"), _artifacts(record)),
        code,
        step_id=identity,
        parent_id=record.word("parent_id") or None,
        index=max(index, 0),
        plan=record.text("changes_description"),
        profile=record.metrics("metrics"),
    )


def _artifacts(record: Fields) -> Mapping[str, Any]:
    """What the evaluator left beside its metrics: an object in a trace, JSON in a text in a checkpoint."""
    value = record.get("artifacts_json", "artifacts")
    with suppress(UnreadableError):  # a broken artifact costs the artifact, not the program
        value = parse_json(value) if isinstance(value, str) else value
    return value if isinstance(value, Mapping) else {}


def _checkpoints(path: Path) -> Iterator[Path]:
    """Checkpoint folders in order of their number; the folder itself when it is one."""
    if (path / "programs").is_dir():
        yield path
        return
    for folder in by_number(path.iterdir(), _CHECKPOINT):
        if (folder / "programs").is_dir() and not folder.is_symlink() and not (folder / "programs").is_symlink():
            yield folder


def _programs(path: Path) -> Iterator[Path]:
    for checkpoint in _checkpoints(path):
        files = sorted((checkpoint / "programs").glob("*.json"))
        yield from (file for file in files if is_regular(file))


def _is_generic(part: str) -> bool:
    return (
        part in ("checkpoints", "openevolve_output", "output", "results", "runs") or _CHECKPOINT.match(part) is not None
    )


def _transitions(collector: Collector) -> Enter:
    name = collector.log.path.parent.name
    run = Run(key="run", source=f"{collector.log.format}/{name}", task=task_at_path(name))

    def enter(row: Fields, number: int) -> None:
        child, parent_id = _program(_side(row, "child"), collector, number), row.word("parent_id")
        if parent_id and not collector.has(run, parent_id) and row.code("parent_code").strip():
            collector.add(run, _program(_side(row, "parent"), collector, number), derived=True)
        collector.add(run, child)

    return enter


def _side(row: Fields, side: str) -> Fields:
    """One end of a transition as a program."""
    taken = {name: row.get(f"{side}_{name}") for name in ("id", "code", "metrics", "changes_description")}
    if side == "child":
        taken |= {name: row.get(name) for name in ("parent_id", "iteration", "generation", "artifacts")}
    return Fields(taken)


def _trace_rows(path: Path) -> Rows:
    return json_items(path, within="traces") if path.name.endswith(".json") else json_lines(path)


CHECKPOINTS = Importer(
    name="openevolve",
    version=3,
    summary="OpenEvolve and SkyDiscover checkpoints: programs with parents and metrics",
    claims=_claims,
    companions=_companions,
    read=_read,
)
TRACE = table(
    name="evolution-trace",
    version=2,
    summary="OpenEvolve evolution_trace: one parent-to-child transition a row",
    fields=(frozenset({"parent_id", "child_id", "parent_metrics", "child_metrics"}),),
    mapping=_transitions,
    rows=_trace_rows,
)
