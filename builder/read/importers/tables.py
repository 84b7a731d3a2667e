"""Published tables of kernels, one record a row; each format is a mapping."""

from __future__ import annotations

from artifacts.candidate import source_hash
from artifacts.measurement import Outcome
from artifacts.task import TaskRef, kernelbench_task, named_task
from artifacts.trajectory import Step, TrustFlag
from builder.read.collector import REFERENCE, Collector, Run
from builder.read.fields import BadRecordError, Fields
from builder.read.table import Enter, cells, table
from builder.read.verdict import MS, NO_MESSAGE, UNTIMED, Verdict, failure_outcome

_OTHER_SCORES = (
    "score_torch_compile_default",
    "score_torch_compile_reduce_overhead",
    "score_cuda_graph",
    "score_cudnn",
)


def _cuda_l1(collector: Collector) -> Enter:
    """Reference-to-winner pairs with speedup ratios on five devices (deepreinforce-ai/CUDA-L1).

    JSON lines, one KernelBench task a row; the file name says the device. The reference is in the row, so each row
    gives a trajectory of two steps: the reference (derived) and the winner with its ratio to it.
    """

    def enter(record: Fields, line: int) -> None:
        level, number, reference = record.integer("level_id"), record.integer("task_id"), record.code("ref_code")
        if level is None or number is None:
            raise BadRecordError("level_id or task_id is missing")
        task, device = kernelbench_task(level, str(number)), collector.log.path.stem
        run = Run(key=f"{level}/{number}", source=collector.log.format, task=task, device=device, reference=reference)
        code, ratio = record.code("custom_code"), record.time_us("score_default")
        if ratio is None:
            raise BadRecordError("no score" if code.strip() else "no candidate: neither code nor score")
        if collector.has(run, REFERENCE):
            raise BadRecordError(f"{task.task_id} occurs twice")
        scores = {name: score for name in _OTHER_SCORES if (score := record.number(name)) is not None}
        winner = collector.step(
            line,
            Verdict(outcome=Outcome.CORRECT),
            code,
            step_id="winner",
            parent_id=REFERENCE,
            index=1,
            ratio_to_parent=ratio,
            profile=scores,
        )
        collector.add_reference(run, line)
        collector.add(run, winner)

    return enter


CUDA_L1 = table(
    name="cuda-l1",
    version=1,
    summary="reference and winner a row with speedup ratios, one file a device (deepreinforce-ai/CUDA-L1)",
    fields=(frozenset({"level_id", "task_id", "ref_code", "custom_code", "score_default"}),),
    mapping=_cuda_l1,
)


def _cuda_engineer(collector: Collector) -> Enter:
    """The AI CUDA Engineer archive and robust-kbench results: one kernel a row of CSV or Parquet.

    No parents are kept: every kernel is a child of the reference where the row holds it, a root otherwise. Dicts in
    cells are Python literals. The authors found that exploits had passed their checks.
    """

    def enter(record: Fields, number: int) -> None:
        task, reference = _cuda_engineer_task(record), record.code("PyTorch_Code_Module")
        native = record.time_us("PyTorch_Native_Runtime", unit_us=MS, unset=UNTIMED)
        code = record.code("CUDA_Code", "Code")
        if not code.strip():
            raise BadRecordError("no candidate: the row has no code")
        run = Run(key=task.task_id, source=collector.log.format, task=task, reference=reference)
        kernel = collector.step(
            number,
            _cuda_engineer_verdict(record, native),
            code,
            step_id=f"{number}",
            parent_id=REFERENCE if reference else None,
            index=1 if reference else 0,
            plan=record.text("Thought"),
            profile=_cuda_engineer_profile(record),
        )
        if reference:
            collector.add_reference(run, number, Verdict(outcome=Outcome.CORRECT, runtime_us=native, statistic="mean"))
        collector.add(run, kernel)

    return enter


def _cuda_engineer_task(record: Fields) -> TaskRef:
    level, number = record.integer("Level_ID"), record.integer("Task_ID")
    if level is not None and number is not None:
        return kernelbench_task(level, str(number))
    name = record.text("task_name", "Op_Name")
    if not name:
        raise BadRecordError("neither Level_ID and Task_ID nor task_name")
    backward = record.flag("forward") is False
    return named_task("robust_kbench", f"{name}_backward" if backward else name)


def _cuda_engineer_verdict(record: Fields, native: float | None) -> Verdict:
    runtime = record.time_us("CUDA_Runtime", "Runtime (ms)", unit_us=MS, unset=UNTIMED)
    speedup = record.number("Speedup", "CUDA_Speedup_Native")
    if native is None and runtime is not None and speedup is not None and speedup > 0:
        native = runtime * speedup
    correct, error = bool(record.flag("Correct")), record.text("Error") or "incorrect"
    return Verdict.of(correct, error, runtime_us=runtime, baseline_us=native, statistic="mean")


def _cuda_engineer_profile(record: Fields) -> dict[str, float]:
    """Averages of the ncu metrics; a broken profile costs the profile, not the kernel."""
    try:
        metrics = record.child("NCU_Profile", "NCU Profile").child("metrics")
        values = {name: metrics.child(name).number("avg_value") for name in list(metrics.data)[:500]}
    except BadRecordError:
        return {}
    return {str(name)[:200]: value for name, value in values.items() if value is not None}


CUDA_ENGINEER = table(
    name="cuda-engineer",
    version=1,
    summary="AI CUDA Engineer archive and robust-kbench results: one kernel a row (CSV, Parquet)",
    fields=(
        frozenset({"Kernel_Name", "CUDA_Code", "CUDA_Runtime"}),
        frozenset({"Kernel Name", "Code", "Runtime (ms)"}),
    ),
    mapping=_cuda_engineer,
    rows=cells,
)


def _kernelbenchx(collector: Collector) -> Enter:
    """Before-and-after pairs of Triton kernels between rounds (BonnieW05/KernelBenchX).

    JSON lines, one pair a line; pairs of one task form a chain of rounds. A pair gives the step of its ``after``; its
    ``before`` is a step of its own (derived) only when no pair ends in it.
    """

    def enter(record: Fields, line: int) -> None:
        name, source = record.text("task_id"), collector.log.format
        if not name:
            raise BadRecordError("task_id is missing")
        task = named_task(source, name.removesuffix(".py").rsplit("/", 1)[-1])
        run = Run(key=name[:300], source=source, task=task)
        before = _kernelbenchx_step(record, "before", "from_round", None, collector, line)
        after = _kernelbenchx_step(record, "after", "to_round", before.step_id, collector, line)
        if collector.has(run, after.step_id):
            raise BadRecordError(f"{after.step_id} of {name} occurs twice"[:200])
        if not collector.has(run, before.step_id):
            collector.add(run, before, derived=True)
        collector.add(run, after)

    return enter


def _kernelbenchx_step(
    record: Fields, side: str, of_round: str, parent: str | None, collector: Collector, line: int
) -> Step:
    found, code, round_name = record.child(side), record.code(f"{side}_code"), record.word(of_round)
    digits = "".join(character for character in round_name if character in "0123456789")[:6]
    return collector.step(
        line,
        _kernelbenchx_verdict(found),
        code,
        step_id=f"{round_name}:{source_hash(code)[:12]}",
        parent_id=parent,
        index=int(digits or "0"),
        profile={name: value for name in ("gbs", "tflops") if (value := found.number(name)) is not None},
    )


def _kernelbenchx_verdict(found: Fields) -> Verdict:
    """A call that failed shows its kind at the end of the traceback; one that passed gave a wrong result."""
    runtime, speedup, error = found.time_us("runtime_ms", unit_us=MS), found.number("speedup"), found.text("error")
    baseline = runtime * speedup if runtime and speedup and speedup > 0 else None
    if found.flag("exe_ok"):
        return Verdict(outcome=Outcome.CORRECT, runtime_us=runtime, baseline_us=baseline)
    outcome = Outcome.WRONG_RESULT if found.flag("call_ok") else failure_outcome(error[-3000:])
    if outcome is Outcome.WRONG_RESULT and not found.flag("call_ok"):
        outcome = Outcome.RUNTIME_ERROR
    return Verdict(outcome=outcome, error=error or NO_MESSAGE, baseline_us=baseline)


KERNELBENCHX = table(
    name="kernelbenchx",
    version=1,
    summary="before-and-after pairs of Triton kernels a line (BonnieW05/KernelBenchX)",
    fields=(frozenset({"transition", "from_round", "to_round", "before", "after"}),),
    mapping=_kernelbenchx,
)


def _mlsys26(collector: Collector) -> Enter:
    """Flattened evolution traces of the MLSys 2026 FlashInfer contest (syhya/mlsys26-flashinfer-contest).

    JSON lines, one step a line; ``parent_step`` is an id within ``traj_id``. Times are comparable only within one
    ``traj_id``, so each is a trajectory. Some roots are the task's definition, not a candidate.
    """

    def enter(record: Fields, line: int) -> None:
        key, source = record.text("traj_id"), collector.log.format
        if not key:
            raise BadRecordError("traj_id is missing")
        task = named_task(record.text("suite") or source, record.text("task_id"), level=record.integer("level"))
        step_id, index = record.word("step"), record.integer("step")
        if not step_id or index is None or index < 0:
            raise BadRecordError("step has no number")
        step = collector.step(
            line,
            _mlsys26_verdict(record),
            record.code("code"),
            step_id=step_id,
            parent_id=record.word("parent_step") or None,
            index=index,
            plan=record.text("strategy"),
            profile=record.metrics("profiler"),
        )
        collector.add(Run(key=key[:300], source=source, task=task, device=record.text("device")), step)

    return enter


def _mlsys26_verdict(record: Fields) -> Verdict:
    correct, error, runtime = bool(record.flag("correct")), record.text("error"), record.time_us("runtime_us")
    if not correct and not error and runtime is None:
        definition = record.code("code").startswith("{")
        raise BadRecordError("no candidate: never evaluated" + (", a task definition" if definition else ""))
    weak = "python" in record.text("baseline_kind").lower()
    return Verdict.of(
        correct,
        error or "incorrect",
        compiled=record.flag("compiled"),
        runtime_us=runtime,
        baseline_us=record.time_us("baseline_us"),
        statistic="mean",
        flags=frozenset({TrustFlag.WEAK_BASELINE} if weak else ()),
    )


MLSYS26 = table(
    name="mlsys26",
    version=1,
    summary="one step a line with parent, plan, times in microseconds (syhya/mlsys26-flashinfer-contest)",
    fields=(frozenset({"traj_id", "step", "parent_step", "compiled", "correct"}),),
    mapping=_mlsys26,
)
