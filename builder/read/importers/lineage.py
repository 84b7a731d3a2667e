"""Backward lineages: an expert kernel and its validated simplifications, ``lineage.toml`` beside the sources.

An expert takes one idea after the other out of a finished kernel, and each simpler version is checked and
timed. Read backwards, each simplification is the step that put its idea in: the simpler version is the
parent, what the simplification removed is the plan. A version is simplified once; ideas that were taken out
of it independently are lineages of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.measurement import Outcome
from artifacts.task import kernelbench_task, named_task
from artifacts.trajectory import Step
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import MAX_SOURCE_BYTES, Probe, UnreadableError, is_regular, read_text
from builder.read.verdict import Verdict

FILE = "lineage.toml"


def _claims(probe: Probe) -> bool:
    return FILE in probe.entries


def _companions(path: Path) -> tuple[Path, ...]:
    files = (path / FILE, *sorted(path.glob("*.py")))
    return tuple(file for file in files if is_regular(file))


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory from the simplest version to the expert's."""
    try:
        whole = Fields.of(tomllib.loads(read_text(log.path / FILE, MAX_SOURCE_BYTES)))
        folder = _Folder(log.path, _run(collector.log.format, log, whole), whole.time_us("baseline_us"))
        versions = whole.items("version")
    except (ValueError, RecursionError) as problem:  # bad TOML and bad fields alike
        collector.refuse(None, f"{FILE}: {problem}", count=True)
        return
    parents: dict[str, tuple[str, str]] = {}
    for item in versions:
        with suppress(BadRecordError):  # the loop below says what is wrong with it
            _note_parent(Fields.of(item, "version"), parents)
    for number, item in enumerate(versions, start=1):
        with collector.record(number):
            step = folder.step(collector, Fields.of(item, "version"), parents, number)
            collector.add(folder.run, replace(step, index=len(versions) - number))


def _note_parent(record: Fields, parents: dict[str, tuple[str, str]]) -> None:
    """Remember the simpler version of a version and what was removed to get there."""
    name, harder = record.text("name"), record.text("simplifies")
    if name and harder:
        parents.setdefault(harder, (name, record.text("removed")))


def _run(source: str, log: LogFile, whole: Fields) -> Run:
    task = whole.child("task")
    suite, name = task.text("suite") or "local", task.text("name")
    if not name:
        raise BadRecordError("[task] has no name")
    level, reference = task.integer("level"), task.text("reference")
    identity = kernelbench_task(level, name) if suite == "kernelbench" else named_task(suite, name, level=level)
    return Run(
        key=name,
        source=f"{source}/{log.path.name}",
        task=identity,
        device=whole.text("device"),
        reference=_source(log.path, reference) if reference else "",
    )


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path
    run: Run
    baseline_us: float | None

    def step(self, collector: Collector, record: Fields, parents: Mapping[str, tuple[str, str]], number: int) -> Step:
        name, harder, code = record.text("name"), record.text("simplifies"), _source(self.path, record.text("file"))
        if not name:
            raise BadRecordError("version has no name")
        record.text("removed")  # of a wrong kind it is this version's fault, not that of the one above
        if harder and parents.get(harder, (name, ""))[0] != name:
            raise BadRecordError(f"{harder!r} is simplified twice: make the second a lineage of its own"[:200])
        parent, removed = parents.get(name, ("", ""))
        correct, error = bool(record.flag("correct")), record.text("error") or "the simplification was not valid"
        return collector.step(
            number,
            Verdict(
                outcome=Outcome.CORRECT if correct else Outcome.WRONG_RESULT,
                error="" if correct else error,
                runtime_us=record.time_us("runtime_us") if correct else None,
                baseline_us=self.baseline_us,
                statistic=record.text("statistic") or "median",
            ),
            code,
            step_id=name,
            parent_id=parent or None,
            plan=removed,
        )


def _source(folder: Path, name: str) -> str:
    """A source beside the description; names with a path are refused."""
    if not name or Path(name).name != name:
        raise BadRecordError(f"file {name[:60]!r} is no plain file name")
    try:
        return checked_code(read_text(folder / name, MAX_SOURCE_BYTES), name)
    except UnreadableError as problem:
        raise BadRecordError(f"{name[:60]!r}: {problem}") from problem


IMPORTER = Importer(
    name="lineage",
    version=1,
    summary="an expert kernel and its validated simplifications (lineage.toml beside the sources)",
    claims=_claims,
    companions=_companions,
    read=_read,
)
