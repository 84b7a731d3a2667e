"""Plain steps: the format for logs that no importer knows, one step a line (docs/reference/logs.md)."""

from __future__ import annotations

from artifacts.measurement import Outcome
from artifacts.task import TaskRef, named_task, task_at_path
from builder.read.collector import Collector, Run
from builder.read.fields import BadRecordError, Fields
from builder.read.table import Enter, table
from builder.read.verdict import NO_MESSAGE, Verdict

NEEDED = ("source", "task", "id", "code", "outcome")
OUTCOMES = tuple(outcome.value for outcome in Outcome)


def _steps(collector: Collector) -> Enter:
    def enter(record: Fields, line: int) -> None:
        missing = [name for name in NEEDED if not str(record.get(name) or "").strip()]
        if missing:
            raise BadRecordError(f"{', '.join(missing)} missing; every step needs {', '.join(NEEDED)}")
        source, device, reference = record.word("source"), record.text("device")[:200], record.code("reference")
        task = _task(record.word("task"), reference)
        run = Run(
            key=f"{source}|{record.word('run')}|{task.task_id}|{device}",
            source=source,
            task=task,
            device=device,
            llm=record.text("llm")[:200],
            reference=reference,
        )
        index = record.integer("index")
        step = collector.step(
            line,
            _verdict(record),
            record.code("code"),
            step_id=record.word("id"),
            parent_id=record.word("parent") or None,
            index=max(line - 1 if index is None else index, 0),
            plan=record.text("plan"),
            profile=record.metrics("profile"),
        )
        if collector.has(run, step.step_id):
            raise BadRecordError(f"id {step.step_id!r} occurs twice in its run"[:200])
        collector.add(run, step)

    return enter


def _task(name: str, reference: str) -> TaskRef:
    suite, _, last = name.rpartition("/")
    if suite and "kernelbench" not in suite.lower() and not suite.lower().startswith("level"):
        return named_task(suite, last, source=reference)
    return task_at_path(name, reference)


def _verdict(record: Fields) -> Verdict:
    word = record.text("outcome")
    if word not in OUTCOMES:
        raise BadRecordError(f"outcome is {word[:40]!r}, none of {', '.join(OUTCOMES)}")
    outcome, time = Outcome(word), record.time_us("time_us")
    if outcome is not Outcome.CORRECT and time is not None:
        raise BadRecordError(f"time_us of a step that is {word}: only correct steps have a time")
    return Verdict(
        outcome=outcome,
        error="" if outcome is Outcome.CORRECT else record.text("error") or NO_MESSAGE,
        runtime_us=time,
        baseline_us=record.time_us("baseline_us"),
    )


IMPORTER = table(
    name="steps",
    version=1,
    summary="plain steps, one a line, for logs of any other kind (docs/reference/logs.md; htam logs check)",
    fields=(frozenset(NEEDED),),
    mapping=_steps,
)
