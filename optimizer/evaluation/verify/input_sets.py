"""Several input settings of one task: each evaluated on its own, and one measurement of all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from artifacts.errors import BadTaskError
from artifacts.measurement import Doubt, InputSetTiming, Measurement, Timing
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.verify.task_module import HIDDEN, MORE, load_task_module, selecting

MOST = 16
"""Settings of a task; each takes an evaluation of its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """One input setting: ``source`` is the task with nothing but this setting."""

    name: str
    source: str
    hidden: bool = False


def input_sets(source: str, scratch: Path) -> list[InputSet]:
    """Settings of a task: ``get_inputs()`` first, then those that are shown and those that are hidden.

    Raises:
        BadTaskError: the task does not run, or has too many.
    """
    first = InputSet(name="get_inputs", source=source)
    if MORE not in source and HIDDEN not in source:
        return [first]
    task = load_task_module(source, scratch)
    shown, hidden = _count(task.input_sets, MORE), _count(task.hidden_input_sets, HIDDEN)
    if 1 + shown + hidden > MOST:
        raise BadTaskError(f"the task has {1 + shown + hidden} input settings", f"at most {MOST} are evaluated")
    return [
        first,
        *(InputSet(name=f"input set {n + 1}", source=selecting(source, MORE, n)) for n in range(shown)),
        *(
            InputSet(name=f"hidden set {n + 1}", source=selecting(source, HIDDEN, n), hidden=True)
            for n in range(hidden)
        ),
    ]


def _count(make: Any, name: str) -> int:
    try:
        return 0 if make is None else len(make())
    except Exception as problem:
        raise BadTaskError(
            f"{name}() fails: {type(problem).__name__}: {problem}", "it returns a list of input lists or of functions"
        ) from problem


def under_each_setting(
    job: EvaluationJob, scratch: Path, evaluated: Callable[[EvaluationJob], Measurement]
) -> Measurement:
    """One measurement of a job from one evaluation a setting, up to the first that is not correct.

    Raises:
        BadTaskError: the task's settings cannot be had.
    """
    sets, measured = input_sets(job.task_source, scratch), list[Measurement]()
    for one in sets:
        measured.append(evaluated(dataclasses.replace(job, task_source=one.source)))
        if measured[-1].timing is None:
            break
    return combined(sets, measured)


def combined(sets: Sequence[InputSet], measured: Sequence[Measurement]) -> Measurement:
    """One measurement of a candidate under several settings, in order; the last may be the first that is not correct.

    Times are geometric means. It is faster than the incumbent when it is so beyond doubt under some setting and, by the
    intervals, over all of them.
    """
    first, last = measured[0], measured[-1]
    if len(sets) == 1:
        return first
    everywhere: dict[str, Any] = {
        "findings": _distinct(one.findings for one in measured),
        "checks": _distinct(one.checks for one in measured),
        "peak_bytes": {name: max(one.peak_bytes.get(name, 0) for one in measured) for name in sorted(first.peak_bytes)},
        "notes": _distinct(_noted(*pair) for pair in zip(sets, measured, strict=False)),
    }
    if last.timing is None:
        return dataclasses.replace(last, **everywhere, error=_told(sets[len(measured) - 1], last))
    timing = _mean([one.timing for one in measured if one.timing is not None])
    incumbents = [one.incumbent for one in measured if one.incumbent is not None]
    incumbent = _mean(incumbents) if len(incumbents) == len(measured) else None  # none where one was timed roughly
    names = [name for name in first.baselines if all(name in one.baselines for one in measured)]
    errors = [one.max_abs_error for one in measured if one.max_abs_error is not None]
    return dataclasses.replace(
        first,
        **everywhere,
        timing=timing,
        baselines={name: _mean([one.baselines[name] for one in measured]) for name in names},
        incumbent=incumbent,
        faster_than_incumbent=None
        if not incumbents
        else incumbent is not None
        and any(one.faster_than_incumbent for one in measured)
        and timing.high_us < incumbent.low_us,
        max_abs_error=max(errors, default=None),
        doubts=_distinct(_doubted(*pair) for pair in zip(sets, measured, strict=True)),
        input_sets=tuple(_timed(*pair) for pair in zip(sets, measured, strict=True)),
    )


def _timed(one: InputSet, measured: Measurement) -> InputSetTiming:
    assert measured.timing is not None
    return InputSetTiming(name=one.name, hidden=one.hidden, timing=measured.timing, baselines=measured.baselines)


def _doubted(one: InputSet, measured: Measurement) -> Iterable[Doubt]:
    return (dataclasses.replace(doubt, text=f"{one.name}: {doubt.text}") for doubt in measured.doubts)


def _told(one: InputSet, failed: Measurement) -> str:
    """The error as a model may see it: of a hidden setting no more than that it failed there."""
    if one.hidden:
        return f"{failed.outcome.value} under an input setting that is not shown: serve other shapes than those shown"
    return f"{one.name}: {failed.error}"


def _noted(one: InputSet, measured: Measurement) -> Iterable[str]:
    yield from (f"{one.name}: {note}" for note in measured.notes)
    if one.hidden and measured.error:
        yield f"{one.name}: {measured.error}"


def _distinct(parts: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _mean(timings: Sequence[Timing]) -> Timing:
    """Geometric mean of medians; errors of the settings are independent, so their logarithms add in squares."""

    def reach(bounds: Iterable[float]) -> float:
        squares = (math.log(bound / one.median_us) ** 2 for bound, one in zip(bounds, timings, strict=True))
        return math.exp(math.sqrt(sum(squares)) / len(timings))

    median = math.exp(sum(math.log(one.median_us) for one in timings) / len(timings))
    low, high = reach(one.low_us for one in timings), reach(one.high_us for one in timings)
    return Timing(median_us=median, low_us=median / low, high_us=median * high)
