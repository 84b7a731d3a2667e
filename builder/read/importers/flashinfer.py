"""FlashInfer-Trace data sets: ``definitions``, ``solutions`` and one evaluation a line in ``traces``.

A solution is measured on many workloads of its definition; it becomes one step for each device, a child of the
definition's reference, with the geometric mean of the ratios to that reference. A failure on one workload is a
failure. Schema: flashinfer-bench, ``flashinfer_bench/data`` (Apache-2.0).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import named_task
from builder.read.collector import REFERENCE, Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields
from builder.read.files import (
    MAX_SOURCE_BYTES,
    Probe,
    UnreadableError,
    is_regular,
    json_lines,
    read_json,
)
from builder.read.verdict import MS, Verdict

_FOLDERS = ("definitions", "solutions", "traces")
_FAILURES = {
    "COMPILE_ERROR": Outcome.COMPILE_ERROR,
    "RUNTIME_ERROR": Outcome.RUNTIME_ERROR,
    "TIMEOUT": Outcome.TIMEOUT,
    "INCORRECT_SHAPE": Outcome.WRONG_RESULT,
    "INCORRECT_NUMERICAL": Outcome.WRONG_RESULT,
    "INCORRECT_DTYPE": Outcome.WRONG_RESULT,
}
_LANGUAGES = {"cuda": Language.CUDA, "triton": Language.TRITON, "cpp": Language.CPP}
_ERROR_CHARS = 4000


def _claims(probe: Probe) -> bool:
    return {"solutions", "traces"} <= probe.entries and (probe.path / "traces").is_dir()


def _companions(path: Path) -> tuple[Path, ...]:
    return tuple(file for folder in _FOLDERS for file in _files(path / folder))


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        found = sorted(file for file in folder.rglob("*") if file.suffix in (".json", ".jsonl"))
        yield from (file for file in found if is_regular(file))


@dataclass(slots=True)
class _Seen:
    """What the traces say of one solution on one device: ratios of its passes, and its first failure."""

    ratios: list[float] = field(default_factory=list)
    failure: Verdict | None = None

    def add(self, evaluation: Fields) -> None:
        status = evaluation.word("status")
        if status == "PASSED":
            figures = evaluation.child("performance")
            time = figures.time_us("latency_ms", unit_us=MS)
            reference = figures.time_us("reference_latency_ms", unit_us=MS)
            if time is None or reference is None:
                raise BadRecordError("passed without latencies")
            self.ratios.append(reference / time)
        elif status in _FAILURES:
            error = f"{status}: {evaluation.text('log')[-_ERROR_CHARS:]}"
            self.failure = self.failure or Verdict(outcome=_FAILURES[status], error=error)
        else:
            raise BadRecordError(f"unknown status {status[:40]!r}")

    @property
    def ratio(self) -> float | None:
        if self.failure is not None or not self.ratios:
            return None
        return math.exp(math.fsum(map(math.log, self.ratios)) / len(self.ratios))


def _read(log: LogFile, collector: Collector) -> None:
    by_folder = defaultdict(list)
    for number, file in enumerate(log.companions, start=1):
        by_folder[file.relative_to(log.path).parts[0]].append((number, file))
    definitions = dict(_definitions([file for _, file in by_folder["definitions"]]))
    seen = _traces(by_folder["traces"], collector)
    for number, file in by_folder["solutions"]:
        try:
            solution = Fields.of(read_json(file, MAX_SOURCE_BYTES), "solution")
            name = (solution.word("definition"), solution.word("name"))
        except (UnreadableError, BadRecordError) as problem:
            collector.refuse(number, str(problem), count=True)
            continue
        devices = seen.pop(name, None)
        if not devices:
            collector.refuse(number, "no evaluation: a solution without a trace", count=True)
            continue
        for device, found in devices.items():
            with collector.record(number):
                _enter(collector, number, solution, definitions.get(name[0]), device, found)
        if collector.gives_up(number):
            return
    for definition, solution_name in seen:
        collector.refuse(None, f"no candidate: traces of {definition}/{solution_name} only"[:300], count=True)


def _definitions(files: list[Path]) -> Iterator[tuple[str, Fields]]:
    """By name; a broken definition leaves its solutions without a reference."""
    for file in files:
        try:
            definition = Fields.of(read_json(file, MAX_SOURCE_BYTES), "definition")
            yield definition.word("name"), definition
        except (UnreadableError, BadRecordError):
            continue


def _traces(files: list[tuple[int, Path]], collector: Collector) -> dict[tuple[str, str], dict[str, _Seen]]:
    """What was measured of each (definition, solution), by device; lines that only name a workload are passed over."""
    seen: dict[tuple[str, str], dict[str, _Seen]] = defaultdict(lambda: defaultdict(_Seen))
    for number, file in files:
        for _, value in json_lines(file):
            try:
                if isinstance(value, UnreadableError):
                    raise value
                trace = Fields.of(value, "trace")
                if trace.get("solution") is None:
                    continue
                evaluation = trace.child("evaluation")
                device = evaluation.child("environment").text("hardware").replace("_", " ")
                seen[trace.word("definition"), trace.word("solution")][device].add(evaluation)
            except (UnreadableError, BadRecordError) as problem:
                collector.refuse(number, str(problem), count=True)
            if collector.gives_up(number):
                return seen
    return seen


def _enter(
    collector: Collector, number: int, solution: Fields, definition: Fields | None, device: str, found: _Seen
) -> None:
    reference = "" if definition is None else definition.code("reference")
    family = "" if definition is None else definition.word("op_type")
    name, author = solution.word("definition"), solution.word("author")
    run = Run(
        key=f"{name}/{device}/{author}",
        source=f"{collector.log.format}/{collector.log.path.name}",
        task=named_task("flashinfer", name, source=reference or family),
        device=device,
        llm=author,
        reference=reference,
    )
    code = "\n".join(Fields.of(part, "source").code("content") for part in solution.items("sources"))
    if not code.strip():
        raise BadRecordError("no candidate: the solution has no source")
    step = collector.step(
        number,
        found.failure or Verdict(outcome=Outcome.CORRECT),
        code,
        step_id=solution.word("name"),
        parent_id=REFERENCE if reference else None,
        index=1 if reference else 0,
        plan=solution.text("description"),
        ratio_to_parent=found.ratio if reference else None,
        language=_LANGUAGES.get(solution.child("spec").word("language").lower()),
    )
    if reference:
        collector.add_reference(run, number)
    collector.add(run, step)


IMPORTER = Importer(
    name="flashinfer-trace",
    version=1,
    summary="FlashInfer-Trace data sets: definitions, solutions and traces of flashinfer-bench",
    claims=_claims,
    companions=_companions,
    read=_read,
)
