"""Multi-round CUDA optimization histories with Nsight Compute metrics per round (SSnTi1111/KernelBench_main).

One file is one run: a list of rounds. A round restarts from the best successful round so far, which is
therefore its parent. The times are of an A800, which the files do not say.
"""

from __future__ import annotations

import re
from pathlib import Path

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import TaskRef, kernelbench_task, named_task
from artifacts.trajectory import Step
from builder.read.collector import Collector, Run
from builder.read.fields import BadRecordError, Fields
from builder.read.files import UnreadableError, read_json
from builder.read.table import Enter, json_items, table
from builder.read.verdict import MS, Verdict

DEVICE = "NVIDIA A800"
_HASH = re.compile(r"^[0-9a-f]{6,40}__")
_OUTCOMES = {
    "failed (correctness)": Outcome.WRONG_RESULT,
    "failed (compilation)": Outcome.COMPILE_ERROR,
    "failed (performance regression)": Outcome.CORRECT,
}


def _rounds(collector: Collector) -> Enter:
    run = Run(key="run", source=collector.log.format, task=_task(_problem(collector.log.path)), device=DEVICE)
    baseline = _baseline_us(collector.log.companions)
    best: Step | None = None

    def enter(record: Fields, number: int) -> None:
        nonlocal best
        index = record.integer("round")
        if index is None or index < 0:
            raise BadRecordError("round has no number")
        verdict, code = _verdict(record, baseline), record.code("code")
        step = collector.step(
            number,
            verdict,
            code,
            step_id=str(index),
            parent_id=best.step_id if best else None,
            index=index,
            plan=_plan(record),
            profile={**record.metrics("all_ncu_metrics"), **record.metrics("ptxas_metrics")},
            language=Language.CUDA,
        )
        collector.add(run, step)
        best = _faster(best, step)

    return enter


def _verdict(record: Fields, baseline: float | None) -> Verdict:
    status, time_us = record.text("status"), record.time_us("time_ms", unit_us=MS)
    success = status.startswith("Success")
    outcome = Outcome.CORRECT if success else _OUTCOMES.get(status.lower(), Outcome.INFRA_ERROR)
    if not record.code("code").strip() and time_us is None:
        raise BadRecordError(f"no candidate: {status}: {record.text('details')}"[:300])
    if outcome is not Outcome.CORRECT:
        error = record.text("details") or status
        return Verdict(outcome=outcome, error=error, baseline_us=baseline, statistic="mean")
    if time_us is None:
        raise BadRecordError(f"{status} without a time")
    return Verdict(outcome=outcome, runtime_us=time_us, baseline_us=baseline, statistic="mean")


def _faster(best: Step | None, step: Step) -> Step | None:
    if step.runtime_us is None:
        return best
    return step if best is None or best.runtime_us is None or step.runtime_us < best.runtime_us else best


def _plan(record: Fields) -> str:
    """The round's goal without the history that some runs paste below it; with its detailed plan."""
    goal = record.text("goal").split("\nOptimization History:")[0].strip()
    if goal in ("Baseline", "N/A"):
        return ""
    parts = (record.text("bottleneck_analysis").strip(), goal, record.text("detailed_plan").strip())
    return "\n\n".join(part for part in parts if part and part != "N/A")


def _problem(path: Path) -> str:
    """Problem name in the file name, without content hash and tail."""
    stem = _HASH.sub("", path.name)
    for tail in ("optimization_history.json", "pytorch_baseline.json"):
        if stem.endswith(tail):
            return stem.removesuffix(tail).rstrip("_")
    return ""


def _task(problem: str) -> TaskRef:
    if problem:
        return kernelbench_task(None, problem)
    return named_task("ssnti1111", "gemm", family="matmul")


def _baseline_us(files: tuple[Path, ...]) -> float | None:
    """Eager time when all baseline files of the problem agree on it within 10 %; None otherwise."""
    times: list[float] = []
    for file in files:
        try:
            value = Fields.of(read_json(file, 2**20)).time_us("pytorch_baseline_ms", unit_us=MS)
        except (UnreadableError, BadRecordError):
            continue
        if value is not None:
            times.append(value)
    if not times or max(times) > 1.1 * min(times):
        return None
    return sorted(times)[len(times) // 2]


def _baselines_of(path: Path) -> tuple[Path, ...]:
    """Baseline files of the same problem, beside the history or in ``../baselines``."""
    problem = _problem(path)
    if not problem:
        return ()
    places = (path.parent, path.parent.parent / "baselines")
    found = (file for place in places for file in place.glob("*_pytorch_baseline.json"))
    return tuple(sorted(file for file in found if _problem(file) == problem and not file.is_symlink()))


IMPORTER = table(
    name="ssnti1111",
    version=1,
    summary="rounds of CUDA kernels with goal, time and Nsight Compute metrics (SSnTi1111/KernelBench_main)",
    fields=(frozenset({"round", "goal", "status", "time_ms", "ptxas_metrics"}),),
    mapping=_rounds,
    rows=json_items,
    companions=_baselines_of,
)
