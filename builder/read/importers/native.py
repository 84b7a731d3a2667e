"""HTAM's own run directories: ``task_started`` and ``step`` events with their candidates.

Every ``step`` event is a record. An unfinished run reads as far as it got.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from artifacts.archive import Archive
from artifacts.codec import decode
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement, Outcome
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.run_files import CANDIDATES, EVENTS, MANIFEST, events_file
from artifacts.trajectory import Step, TrustFlag
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import (
    MAX_SOURCE_BYTES,
    Probe,
    UnreadableError,
    json_lines,
    open_archive,
    read_json,
    read_member,
    read_text,
)
from builder.read.verdict import Verdict

_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def _claims(probe: Probe) -> bool:
    named = MANIFEST in probe.entries and all(not probe.entries.isdisjoint(forms) for forms in (EVENTS, CANDIDATES))
    return probe.is_dir and named


def _companions(path: Path) -> tuple[Path, ...]:
    folder, packed = (path / name for name in CANDIDATES)
    sources = [packed] if packed.exists() else sorted(folder.glob("*.py"))
    return (events_file(path), path / MANIFEST, *sources)


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory a task."""
    reader = _Reader(log.path, f"{collector.log.format}/{_run_id(log.path)}", collector, _packed(log.path))
    for line, value in json_lines(events_file(log.path)):
        reader.event(line, value)
        if collector.gives_up(line):
            break


@dataclass(slots=True)
class _Reader:
    run: Path
    source: str
    collector: Collector
    packed: Archive | str | None
    tasks: dict[str, TaskStarted] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def event(self, line: int, value: object) -> None:
        """Enter a step, remember a task, pass over everything else."""
        if isinstance(value, UnreadableError):
            self.collector.refuse(line, str(value), count=True)
            return
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "task_started":
            self._task(value)
        elif kind == "step" or not isinstance(value, dict):
            with self.collector.record(line):
                self._step(line, Fields.of(value, "event"))

    def _task(self, event: object) -> None:
        """A broken ``task_started`` quarantines its steps, each with its reason."""
        try:
            started = decode(TaskStarted, Fields.of(event).get("payload"))
        except BadInputError:
            return
        self.tasks[started.task.task_id] = started

    def _step(self, line: int, event: Fields) -> None:
        try:
            logged = decode(LoggedStep, event.get("payload"))
        except BadInputError as problem:
            raise BadRecordError(f"not a step: {problem.what}") from problem
        started = self.tasks.get(logged.task_id)
        if started is None:
            raise BadRecordError(f"step of a task that was not started: {logged.task_id}"[:200])
        if logged.measurement is None or not logged.candidate_sha256:
            raise BadRecordError(f"no candidate: {logged.error or 'the answer held no code'}"[:300])
        run = Run(
            key=logged.task_id,
            source=self.source,
            task=started.task,
            device=logged.measurement.device,
            llm=logged.model,
            reference=self._source(started.source_sha256, missing=""),
        )
        self.collector.add(run, self._as_step(line, logged, logged.measurement))

    def _as_step(self, line: int, logged: LoggedStep, measurement: Measurement) -> Step:
        code = self._source(logged.candidate_sha256)
        timing, reference = measurement.timing, measurement.reference
        verdict = Verdict(
            outcome=measurement.outcome,
            error=measurement.error,
            runtime_us=timing.median_us if timing and measurement.outcome is Outcome.CORRECT else None,
            baseline_us=reference.median_us if reference else None,
            statistic="median",
            flags=frozenset(TrustFlag(doubt.kind.value) for doubt in measurement.doubts),
        )
        step = self.collector.step(
            line,
            verdict,
            code,
            step_id=logged.step_id,
            parent_id=logged.parent_id,
            index=logged.index,
            plan=logged.plan,
            profile=_profile(measurement),
            ratio_to_parent=_paired(measurement) if logged.parent_id is not None else None,
        )
        return replace(
            step, direction=logged.direction, state=logged.state, choice_probability=logged.choice_probability
        )

    def _source(self, sha256: str, missing: str | None = None) -> str:
        """A stored source, read once however many steps share it."""
        if sha256 in self.sources:
            return self.sources[sha256]
        try:
            source = self._stored(sha256)
        except (UnreadableError, BadRecordError) as problem:
            if missing is None:
                raise BadRecordError(f"candidate {sha256[:12]!r}: {problem}") from problem
            return missing
        self.sources[sha256] = source
        return source

    def _stored(self, sha256: str) -> str:
        """The file of a source; its name is a hash and nothing else, so no path leaves the run."""
        if not _SHA256.match(sha256):
            raise UnreadableError("not a hash")
        name = f"{sha256}.py"
        if isinstance(self.packed, str):
            raise UnreadableError(self.packed)
        if self.packed is None:
            text = read_text(self.run / CANDIDATES[0] / name, MAX_SOURCE_BYTES)
        else:
            text = read_member(self.packed, name)
        return checked_code(text, sha256[:12])


def _packed(run: Path) -> Archive | str | None:
    """Packed candidates of a run, or why they cannot be read; None when they are not packed."""
    path = run / CANDIDATES[1]
    if not path.exists():
        return None
    try:
        return open_archive(path)
    except UnreadableError as problem:
        return f"{path.name} {problem}"


def _run_id(path: Path) -> str:
    """Name that the run gave itself, else that of its directory."""
    try:
        return Fields.of(read_json(path / MANIFEST, MAX_SOURCE_BYTES)).word("run_id") or path.name
    except (UnreadableError, BadRecordError):
        return path.name


def _paired(measurement: Measurement) -> float | None:
    """Incumbent time / candidate time, interleaved; of a correct parent the incumbent is the parent itself."""
    if measurement.timing is None or measurement.incumbent is None:
        return None
    return measurement.incumbent.median_us / measurement.timing.median_us


def _profile(measurement: Measurement) -> dict[str, float]:
    profile = measurement.profile
    if profile is None:
        return {}
    bound = {"bound_us": profile.bound_us, "fraction_of_bound": profile.fraction_of_bound}
    return {**profile.metrics, **{name: value for name, value in bound.items() if value is not None}}


IMPORTER = Importer(
    name="htam",
    version=2,
    summary="run directories of htam optimize",
    claims=_claims,
    companions=_companions,
    read=_read,
)
