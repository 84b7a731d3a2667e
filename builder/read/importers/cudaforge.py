"""CudaForge task folders: ``code/kernel_*.py`` with one ``evaluation/eval_NNNN.json`` a round.

An evaluation that failed does not name its kernel, so kernels and evaluations, both in order of time, are
paired by position when there are as many of one as of the other. The parent of a round is the round before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from artifacts.task import TaskRef, task_at_path
from artifacts.trajectory import Step, TrustFlag
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import (
    MAX_SOURCE_BYTES,
    Probe,
    UnreadableError,
    by_number,
    is_regular,
    parse_json,
    read_json,
    read_text,
)
from builder.read.verdict import MS, Verdict

EVALUATION = re.compile(r"^eval_(\d{1,9})\.json$")
KERNEL = re.compile(r"^kernel_\w+\.py$")


def _claims(probe: Probe) -> bool:
    return {"code", "evaluation"} <= probe.entries and bool(evaluations(probe.path))


def _companions(path: Path) -> tuple[Path, ...]:
    return (
        *kernels(path),
        *evaluations(path),
        *_plain(sorted((path / "evaluation" / "llm_io").glob("*_reply.txt"))),
    )


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory a folder."""
    folder = TaskFolder.at(log.path)
    run = Run(key="run", source=f"{collector.log.format}/{log.path.parent.name}", task=folder.task)
    previous: str | None = None
    for number, file in enumerate(folder.evaluations):
        with collector.record(number + 1):
            step = folder.step(collector, file, previous, _plan(log.path, number), {})
            collector.add(run, step)
            previous = step.step_id


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """Kernels and evaluations of one task, as CudaForge and KernelMem lay them out.

    Attributes:
        evaluations: in order of time.
        kernel_of: evaluation file name → kernel file, where it is known.
    """

    path: Path
    evaluations: tuple[Path, ...]
    kernel_of: Mapping[str, Path]

    @classmethod
    def at(cls, path: Path) -> TaskFolder:
        """Look at a folder and pair its evaluations with its kernels."""
        files, sources = evaluations(path), kernels(path)
        pairs = dict(zip((file.name for file in files), sources, strict=False)) if len(files) == len(sources) else {}
        return cls(path, files, pairs)

    @property
    def task(self) -> TaskRef:
        """From the reference file that an evaluation names, else from the folder's name."""
        for file in self.evaluations:
            try:
                reference = Fields.of(read_json(file, MAX_SOURCE_BYTES)).text("reference_file")
            except (UnreadableError, BadRecordError):
                continue
            if reference:
                return task_at_path(reference)
        return task_at_path(self.path.name)

    def step(
        self, collector: Collector, file: Path, parent: str | None, plan: str, profile: Mapping[str, float]
    ) -> Step:
        """The step of one evaluation.

        Raises:
            BadRecordError: the evaluation or its kernel cannot be read.
        """
        record = Fields.of(read_json(file, MAX_SOURCE_BYTES), file.name)
        kernel = self._kernel(file, record)
        code = checked_code(read_text(kernel, MAX_SOURCE_BYTES), kernel.name)
        message = ": ".join(part for part in (record.text("error_type"), record.text("message")) if part)
        verdict = Verdict.of(
            bool(record.flag("runnable")),
            message,
            runtime_us=record.child("test_latency_ms").time_us("avg", unit_us=MS),
            baseline_us=record.child("ref_latency_ms").time_us("avg", unit_us=MS),
            statistic="mean",
            flags=frozenset({TrustFlag.ONE_SEED} if record.get("seed") is not None else ()),
        )
        place = self.evaluations.index(file)
        return collector.step(
            place + 1, verdict, code, step_id=kernel.stem, parent_id=parent, index=place, plan=plan, profile=profile
        )

    def _kernel(self, file: Path, record: Fields) -> Path:
        """The kernel that the evaluation names if it lies in ``code``, else the one of the same position."""
        named = self.path / "code" / PurePosixPath(record.text("candidate_file").replace("\\", "/")).name
        if KERNEL.match(named.name) and is_regular(named):
            return named
        if file.name not in self.kernel_of:
            raise BadRecordError("no kernel file can be paired with the evaluation")
        return self.kernel_of[file.name]


def evaluations(path: Path) -> tuple[Path, ...]:
    """Evaluation files of a task folder in order of their number."""
    return _plain(by_number((path / "evaluation").glob("eval_*.json"), EVALUATION))


def kernels(path: Path) -> tuple[Path, ...]:
    """Kernel files of a task folder in order of their time stamps."""
    return _plain(sorted(file for file in (path / "code").glob("kernel_*.py") if KERNEL.match(file.name)))


def _plain(files: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(file for file in files if is_regular(file))


def _plan(path: Path, number: int) -> str:
    """What the judge asked for before a round, from the strategy or the diagnosis that it wrote."""
    for name in (f"{number}_optimization_strategy_reply.txt", f"{number}_raw_problem_identify_reply.txt"):
        try:
            text = read_text(path / "evaluation" / "llm_io" / name, MAX_SOURCE_BYTES)
        except UnreadableError:
            continue
        return plan_text(text)
    return ""


def plan_text(reply: str) -> str:
    """The plan in a judge's reply: the texts of its JSON object, or the reply itself."""
    start, end = reply.find("{"), reply.rfind("}")
    if 0 <= start < end:
        try:
            return plan_of(Fields.of(parse_json(reply[start : end + 1])))
        except (UnreadableError, BadRecordError):
            pass
    return Fields({"reply": reply.strip()}).text("reply")


def plan_of(strategy: Fields) -> str:
    """One text from the fields in which CudaForge and KernelMem keep a strategy or a diagnosis."""
    names = ("bottleneck", "optimisation method", "primary_optimisation_method", "method_name", "modification plan")
    more = ("modification_plan", "critical_issue", "root_cause", "why_it_matters", "minimal_fix_hint")
    parts: list[str] = []
    for name in (*names, *more):
        value = strategy.get(name)
        if isinstance(value, str) and value.strip() and value not in parts:
            parts.append(value.strip())
    return Fields({"plan": "\n".join(parts)}).text("plan")


IMPORTER = Importer(
    name="cudaforge",
    version=1,
    summary="CudaForge task folders: kernels and one evaluation a round",
    claims=_claims,
    companions=_companions,
    read=_read,
)
