"""A run directory to the view its page is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.codec import decode
from artifacts.errors import RunLogError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from artifacts.run_events import LoggedStep, TaskFinished, TaskStarted
from artifacts.runlog import Event, RunLog
from pipeline.report.paired import fastest, paired_times
from pipeline.report.run_view import Cost, RunView, StepView, TaskView


def read_run(path: Path, direction_names: Mapping[str, str] | None = None) -> RunView:
    """Read the run in ``path``; directions are shown under ``direction_names`` where they are known.

    Raises:
        RunLogError: no run, one that is damaged, or one that has not begun.
    """
    log = RunLog.open(path)
    events = list(log.events())
    if not events:
        raise RunLogError(f"{path} has not begun: there is nothing in its log", "give its htam optimize command again")
    steps = [decode(LoggedStep, event.payload) for event in events if event.kind == "step"]
    started = [decode(TaskStarted, event.payload) for event in events if event.kind == "task_started"]
    finished = {event.key: decode(TaskFinished, event.payload) for event in events if event.kind == "task_finished"}
    choices = {event.key: event.payload["choice"] for event in events if event.kind == "choice"}
    tasks = [
        _task(
            item,
            [step for step in steps if step.task_id == item.task.task_id],
            finished,
            direction_names or {},
            choices,
        )
        for item in started
    ]
    facts = _facts(log.manifest)
    return RunView(
        run_id=facts.get("run_id") or path.resolve().name,
        path=path,
        arm=facts.get("arm") or facts.get("settings.arm") or "unknown",
        llm=facts.get("llm") or facts.get("settings.llm") or "unknown model",
        device=_device(steps) or facts.get("device") or "",
        memory=facts.get("memory") or facts.get("memory.reference") or "",
        facts=facts,
        tasks=tuple(tasks),
        cost=_cost(events, steps),
        notes=tuple(str(event.payload["text"]) for event in events if event.kind == "note" and "text" in event.payload),
    )


def _task(
    item: TaskStarted,
    steps: list[LoggedStep],
    finished: Mapping[str, TaskFinished],
    names: Mapping[str, str],
    choices: Mapping[str, Mapping[str, Any]],
) -> TaskView:
    end = finished.get(item.task.task_id)
    best = end.best_step if end else fastest(steps, paired_times(steps))
    times = paired_times(steps, best, end.confirmed if end else None)
    views = [_step(step, names, choices.get(f"{step.task_id}/{step.step_id}", {})) for step in steps]
    shown = [
        replace(view, best=step.step_id == best, paired_us=times.get(step.step_id))
        for view, step in zip(views, steps, strict=True)
    ]
    return TaskView(
        ref=item.task,
        status=end.reason if end else "not finished",
        steps=tuple(shown),
        confirmed=end.confirmed if end else None,
        refuted=tuple(f"step {step}: {why}" for step, why in end.refuted.items()) if end else (),
    )


def _step(step: LoggedStep, names: Mapping[str, str], choice: Mapping[str, Any]) -> StepView:
    measurement = step.measurement or Measurement(
        outcome=Outcome.REJECTED, stage="answer", device="", error=step.error or "the answer held no usable code"
    )
    return StepView(
        step=step.index,
        sha256=step.candidate_sha256,
        parent=step.parent_sha256,
        mode=step.mode,
        direction=names.get(step.direction, step.direction) or _intent(choice),
        strategies=tuple(names.get(name, name) for name in step.strategies),
        plan=step.plan,
        probability=step.choice_probability,
        gate=str(choice.get("gate", "")),
        measurement=measurement,
    )


def _intent(choice: Mapping[str, Any]) -> str:
    """The intent of the model's own list that a step implements, in a few words; empty for none."""
    intent = choice.get("intent")
    return f"{intent['number']}. {intent['text'][:60]}" if intent else ""


def _device(steps: Iterable[LoggedStep]) -> str:
    names = sorted({step.measurement.device for step in steps if step.measurement and step.measurement.device})
    return ", ".join(names)


def _cost(events: Sequence[Event], steps: list[LoggedStep]) -> Cost:
    answers = [event.payload for event in events if event.kind == "answer"]
    taken = [decode(Measurement, event.payload) for event in events if event.kind == "measurement"]
    measured = taken or [step.measurement for step in steps if step.measurement is not None]
    return Cost(
        calls=len(answers),
        recorded=sum(bool(_field(answer, "recorded")) for answer in answers),
        prompt_tokens=sum(int(_field(answer, "prompt_tokens") or 0) for answer in answers),
        completion_tokens=sum(int(_field(answer, "completion_tokens") or 0) for answer in answers),
        usd=sum(float(_field(answer, "cost_usd") or 0.0) for answer in answers),
        llm_s=sum(float(_field(answer, "seconds") or 0.0) for answer in answers),
        build_s=round(sum(item.build_s for item in measured), 1),
        gpu_s=round(sum(item.gpu_s for item in measured), 1),
    )


def _field(payload: Mapping[str, Any], name: str) -> Any:
    nested = payload.get("answer")
    return nested.get(name) if isinstance(nested, Mapping) else payload.get(name)


def _facts(manifest: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Manifest entries as flat text, nested names joined by dots."""
    flat: dict[str, str] = {}
    for name, value in manifest.items():
        if isinstance(value, Mapping):
            flat |= _facts(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            flat[f"{prefix}{name}"] = ", ".join(str(item) for item in value)[:300]
        elif value not in (None, ""):
            flat[f"{prefix}{name}"] = str(value)
    return flat
