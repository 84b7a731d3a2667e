"""Published KernelAgent traces: ``input_kernel.py`` and ``optimization_trace/round_N`` with profile before and after.

A round may start from any earlier kernel of the beam: its parent is the one whose profile after optimization
fits the round's input profile, and the input kernel where none does. Beside the traces KernelAgent keeps
``program_database.json``: programs with parents and times that passed verification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import task_at_path
from artifacts.trajectory import Step, TrustFlag
from builder.read.collector import TIMELESS, Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import MAX_SOURCE_BYTES, Probe, UnreadableError, by_number, is_regular, read_json, read_text
from builder.read.table import Enter, json_items, table
from builder.read.verdict import MS, UNTIMED, Verdict

SAME_PROFILE = 0.03
"""Two profiles are of one kernel when half of their counters differ by less than this share."""

_ROUND = re.compile(r"^round_(\d{1,6})$")
_FILES = (
    "kernel.py",
    "benchmark_results.json",
    "strategy.json",
    "input_ncu_metrics.json",
    "optimized_ncu_metrics.json",
)


def _claims(probe: Probe) -> bool:
    return {"input_kernel.py", "optimization_trace"} <= probe.entries and bool(_rounds(probe.path))


def _companions(path: Path) -> tuple[Path, ...]:
    inside = (folder / name for folder in _rounds(path) for name in _FILES)
    return tuple(file for file in (path / "input_kernel.py", path / "problem.py", *inside) if is_regular(file))


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory a folder; the input kernel is its root, without a time of its own."""
    reference = _text(log.path / "problem.py")
    task = task_at_path(log.path.name, reference)
    # the harness casts inputs: sizes and precision of the reference hold only when it says float32
    kept = reference if _dtype(_rounds(log.path)[0]) in ("", "float32") else ""
    run = Run(key="run", source=f"{collector.log.format}/{log.path.parent.name}", task=task, reference=kept)
    profiles: dict[str, Mapping[str, float]] = {}
    for number, folder in enumerate(_rounds(log.path), start=1):
        before = _profile(folder / "input_ncu_metrics.json")
        if number == 1:
            _add_root(collector, run, log.path / "input_kernel.py", before)
        with collector.record(number):
            step = _step(collector, folder, _parent(before, profiles), number)
            collector.add(run, step)
            profiles[step.step_id] = step.profile


def _add_root(collector: Collector, run: Run, path: Path, profile: Mapping[str, float]) -> None:
    code = _text(path)
    if not code.strip() or "\0" in code:
        return
    collector.add(run, collector.step(None, TIMELESS, code, step_id="input", profile=profile), derived=True)


def _step(collector: Collector, folder: Path, parent: str, number: int) -> Step:
    code = checked_code(read_text(folder / "kernel.py", MAX_SOURCE_BYTES), "kernel.py")
    if not code.strip():
        raise BadRecordError("no candidate: the kernel file is empty")
    times = Fields.of(read_json(folder / "benchmark_results.json", MAX_SOURCE_BYTES)).child("kernels")
    values = [times.child(name).time_us("time_ms", unit_us=MS) for name in times.data]
    measured = [value for value in values if value is not None]
    if not measured:
        raise BadRecordError("no time for the kernel")
    return collector.step(
        number,
        Verdict(outcome=Outcome.CORRECT, runtime_us=min(measured), statistic="mean"),
        code,
        step_id=folder.name,
        parent_id=parent,
        index=number,
        plan=_plan(folder / "strategy.json"),
        profile=_profile(folder / "optimized_ncu_metrics.json"),
        language=Language.TRITON if "triton" in code else None,
        flags=frozenset({TrustFlag.RECONSTRUCTED}),
    )


def _dtype(folder: Path) -> str:
    try:
        benchmark = Fields.of(read_json(folder / "benchmark_results.json", MAX_SOURCE_BYTES))
        return benchmark.text("dtype").removeprefix("torch.")
    except (UnreadableError, BadRecordError):
        return ""


def _parent(before: Mapping[str, float], profiles: Mapping[str, Mapping[str, float]]) -> str:
    """The step whose profile is nearest to ``before``, if it is near at all; the input kernel otherwise."""
    distances = [(_distance(before, profile), name) for name, profile in profiles.items()]
    nearest = min(distances, default=(1.0, "input"))
    return nearest[1] if nearest[0] < SAME_PROFILE else "input"


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Median relative difference over the counters that both have and that are not zero in both."""
    shared = [(one[name], other[name]) for name in one if name in other and (one[name] or other[name])]
    if len(shared) < 5:
        return 1.0
    return median(abs(a - b) / max(abs(a), abs(b)) for a, b in shared)


def _plan(path: Path) -> str:
    """Summary and recommended fixes of a strategy."""
    try:
        value = read_json(path, MAX_SOURCE_BYTES)
        first = Fields.of(value[0] if isinstance(value, list) and value else value, "strategy")
        fixes = [Fields.of(fix, "fix").text("fix") for fix in first.items("recommended_fixes")]
        return "\n".join(part for part in (first.text("summary"), *fixes) if part)
    except (UnreadableError, BadRecordError):
        return ""


def _profile(path: Path) -> dict[str, float]:
    """Metrics of the first kernel in a profile; empty when there is none."""
    try:
        kernels = Fields.of(read_json(path, MAX_SOURCE_BYTES)).child("metrics")
        return kernels.metrics(next(iter(kernels.data), ""))
    except (UnreadableError, BadRecordError):
        return {}


def _text(path: Path) -> str:
    try:
        return Fields({"text": read_text(path, MAX_SOURCE_BYTES)}).text("text")
    except UnreadableError:
        return ""


def _rounds(path: Path) -> tuple[Path, ...]:
    """Round folders in order of their number."""
    trace = path / "optimization_trace"
    if trace.is_symlink() or not trace.is_dir():
        return ()
    found = by_number(trace.iterdir(), _ROUND)
    return tuple(folder for folder in found if folder.is_dir() and not folder.is_symlink())


def _programs(collector: Collector) -> Enter:
    folder = collector.log.path.parent.name
    source = f"{collector.log.format}/{folder}"

    def enter(record: Fields, number: int) -> None:
        problem_id = record.word("problem_id") or folder
        identity, code = record.word("program_id"), record.code("kernel_code")
        if not identity or not code.strip():
            raise BadRecordError("no candidate: the program has no id or no code")
        runtime = record.child("metrics").time_us("time_ms", unit_us=MS, unset=UNTIMED)
        program = collector.step(
            number,
            Verdict(outcome=Outcome.CORRECT, runtime_us=runtime, statistic="mean"),
            code,
            step_id=identity,
            parent_id=record.word("parent_id") or None,
            index=max(record.integer("generation") or 0, 0),
            profile=record.metrics("metrics"),
        )
        collector.add(Run(key=problem_id[:300], source=source, task=task_at_path(problem_id)), program)

    return enter


TRACES = Importer(
    name="kernelagent",
    version=1,
    summary="KernelAgent traces: rounds with strategy, benchmark and profiles before and after",
    claims=_claims,
    companions=_companions,
    read=_read,
)
DATABASE = table(
    name="kernelagent-database",
    version=1,
    summary="KernelAgent's program_database.json: programs with parents and times",
    fields=(frozenset({"programs", "program_id", "kernel_code", "parent_id"}),),
    mapping=_programs,
    rows=partial(json_items, within="programs"),
)
