"""OpenEvolve checkpoints: ``checkpoint_N/programs/<id>.json`` with parents and user-defined metrics.

Checkpoints of one run overlap; a program is read from the first that holds it. Metrics are whatever the
user's evaluator returned: a time, a speedup and a verdict are looked for under the names people use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.features import detect_language
from artifacts.outcome import Outcome
from artifacts.task_identity import task_at_path
from artifacts.trajectory import Step
from builder.logs.fields import BadRecordError, Fields
from builder.logs.files import MAX_SOURCE_BYTES, UnreadableError, is_regular, parse_json, read_json
from builder.logs.gathering import Gathering, Run
from builder.logs.logfile import LogFile
from builder.logs.metrics import judge
from builder.logs.probe import Probe

_CHECKPOINT = re.compile(r"^checkpoint_(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class OpenEvolve:
    """Importer of a run's checkpoints."""

    name: str = "openevolve"
    version: int = 2
    summary: str = "OpenEvolve checkpoints: programs with parents and metrics"

    def claims(self, probe: Probe) -> bool:
        """A checkpoint, or a directory of checkpoints, with programs."""
        if {"metadata.json", "programs"} <= probe.entries:
            return True
        return any(_CHECKPOINT.match(name) for name in probe.entries) and any(_checkpoints(probe.path))

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The program files of all checkpoints."""
        return tuple(_programs(path))

    def read(self, log: LogFile, books: Gathering) -> None:
        """One trajectory for the run."""
        name = next((part for part in reversed(log.path.parts) if not _is_generic(part)), log.path.name)
        run = Run(key="run", source=f"{self.name}/{name}", task=task_at_path(name))
        seen: set[str] = set()
        for number, file in enumerate(log.companions, start=1):
            if file.name in seen:
                continue
            seen.add(file.name)
            with books.record(number):
                books.add(run, program_step(Fields.of(read_json(file, MAX_SOURCE_BYTES), "program"), books, number))


def program_step(record: Fields, books: Gathering, number: int) -> Step:
    """The step of one program.

    Raises:
        BadRecordError: it has no id or code, or metrics that tell neither a verdict nor a time.
    """
    identity, code = record.word("id"), record.code("code")
    if not identity or not code.strip():
        raise BadRecordError("no candidate: the program has no id or no code")
    found = judge(record.child("metrics"), _artifacts(record))
    index = record.integer("iteration_found", "generation", "iteration") or 0
    return Step(
        step_id=identity,
        parent_id=record.word("parent_id") or None,
        index=max(index, 0),
        code=code,
        language=detect_language(code),
        outcome=found.outcome,
        provenance=books.provenance(number),
        plan=record.text("changes_description"),
        error=found.error,
        runtime_us=found.runtime_us if found.outcome is Outcome.CORRECT else None,
        baseline_us=found.baseline_us,
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
    found = [(match, folder) for folder in path.iterdir() if (match := _CHECKPOINT.match(folder.name))]
    for _, folder in sorted(found, key=lambda pair: (int(pair[0].group(1)), pair[1].name)):
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
