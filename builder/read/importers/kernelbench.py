"""KernelBench's own run folders, and turns of an agentic run with diagnosis and directive (pango0/KernelBench-Agentic).

A run folder holds ``eval_results.json`` beside ``level_L_problem_P_sample_S_kernel.py``. The samples of a problem are
independent: each is a root of the problem's trajectory. The reference time, which the evaluation does not keep, comes
from ``baseline_time*.json`` where such a file lies in the folder.

An agentic run is one file a method: ``levels.<level>.<problem>.turns[]``. A turn refines the one before it; what it set
out to do is the directive that ended the turn before, or the strategy of the analysis for the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from artifacts.measurement import Outcome
from artifacts.task import kernelbench_task, slugify
from artifacts.trajectory import Step
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import MAX_SOURCE_BYTES, Probe, UnreadableError, read_json, read_text
from builder.read.verdict import MS, kernelbench_verdict

_KERNEL = re.compile(r"^level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py$")


def _claims_run(probe: Probe) -> bool:
    return "eval_results.json" in probe.entries and any(_KERNEL.match(name) for name in probe.entries)


def _companions_run(path: Path) -> tuple[Path, ...]:
    names = (entry.name for entry in path.iterdir() if entry.is_file() and not entry.is_symlink())
    return tuple(path / name for name in sorted(names) if name == "eval_results.json" or _wanted(name))


def _read_run(log: LogFile, collector: Collector) -> None:
    """One trajectory a problem; kernels without a result are quarantined."""
    kernels = {match.groups(): log.path / match.group(0) for match in map(_KERNEL.match, _names(log)) if match}
    try:
        results = Fields.of(read_json(log.path / "eval_results.json"), "eval_results.json")
    except (UnreadableError, BadRecordError) as problem:
        collector.refuse(None, str(problem), count=True)
        results = Fields({})
    folder = _Folder(log.path.name, kernels, _baselines(log), set())
    for number, (problem_key, item) in enumerate(_samples(results), start=1):
        with collector.record(number):
            _enter(collector, folder, problem_key, Fields.of(item, "sample"), number)
    for key in sorted(set(kernels) - folder.used):
        collector.refuse(None, f"kernel without an evaluation: level {key[0]} problem {key[1]}", count=True)


@dataclass(frozen=True, slots=True)
class _Folder:
    name: str
    kernels: Mapping[tuple[str, ...], Path]
    baselines: Mapping[str, float]
    used: set[tuple[str, ...]]

    def kernel(self, level: str | None, problem: str, sample: str) -> tuple[str, Path]:
        """(level, path) of the kernel of a sample; results of one level do not repeat the level."""
        for key, path in self.kernels.items():
            if key[1:] == (problem, sample) and level in (None, key[0]):
                self.used.add(key)
                return key[0], path
        raise BadRecordError(f"no kernel file for problem {problem[:20]!r} sample {sample[:20]!r}")


def _enter(collector: Collector, folder: _Folder, problem_key: str, record: Fields, number: int) -> None:
    level, _, problem = problem_key.rpartition("/")
    sample = record.word("sample_id") or "0"
    found_level, path = folder.kernel(level or None, problem, sample)
    task = kernelbench_task(int(found_level), problem)
    verdict = kernelbench_verdict(record)
    source = f"{collector.log.format}/{folder.name}"
    run = Run(key=f"{found_level}/{problem}", source=source, task=task, device=verdict.device)
    code = checked_code(read_text(path, MAX_SOURCE_BYTES), path.name)
    verdict = replace(verdict, baseline_us=folder.baselines.get(task.task_id, verdict.baseline_us))
    collector.add(run, collector.step(number, verdict, code, step_id=sample))


def _samples(results: Fields) -> Iterator[tuple[str, Any]]:
    """(problem or level/problem, sample) of results keyed by problem or by level and problem."""
    for key, value in results.data.items():
        if isinstance(value, list):
            for item in value:
                yield str(key), item
        elif isinstance(value, dict) and not {"compiled", "correctness"} & set(value):
            for inner, samples in value.items():
                for item in samples if isinstance(samples, list) else [samples]:
                    yield f"{key}/{inner}", item
        else:
            yield str(key), value


def _baselines(log: LogFile) -> dict[str, float]:
    """Task id → eager time in microseconds from the baseline files of the folder."""
    times: dict[str, float] = {}
    for path in log.companions:
        if not path.name.startswith("baseline_time"):
            continue
        try:
            levels = Fields.of(read_json(path))
            for level in levels.data:
                _level_baselines(levels, level, times)
        except (UnreadableError, BadRecordError):
            continue
    return times


def _level_baselines(levels: Fields, level: str, times: dict[str, float]) -> None:
    problems = levels.child(level)
    number = next((int(character) for character in level if character in "1234"), None)
    for name in problems.data:
        mean = problems.child(name).time_us("mean", unit_us=MS)
        if mean is not None:
            times[kernelbench_task(number, name).task_id] = mean


def _wanted(name: str) -> bool:
    return _KERNEL.match(name) is not None or (name.startswith("baseline_time") and name.endswith(".json"))


def _names(log: LogFile) -> Iterator[str]:
    return (path.name for path in log.companions)


def _claims_agentic(probe: Probe) -> bool:
    return probe.is_json and {"meta", "levels", "problem_name", "extracted_code"} <= probe.fields


def _read_agentic(log: LogFile, collector: Collector) -> None:
    """One trajectory a problem."""
    try:
        whole = Fields.of(read_json(log.path), "file")
        meta = whole.child("meta")
        method, llm = slugify(meta.text("method")), meta.text("model")
        problems = list(_problems(whole.child("levels")))
        device = next(filter(None, (_hardware(problem) for _, _, problem in problems)), "")
    except (UnreadableError, BadRecordError) as problem:
        collector.refuse(None, str(problem), count=True)
        return
    for level, key, data in problems:
        _enter_turns(collector, f"{method}/{level}/{key}", level, (device, llm), data)


def _problems(levels: Fields) -> Iterator[tuple[str, str, Any]]:
    for level in levels.data:
        for key, problem in levels.child(level).data.items():
            yield level, key, problem


def _enter_turns(collector: Collector, key: str, level: str, host: tuple[str, str], data: Any) -> None:
    try:
        problem = Fields.of(data, "problem")
        run = _run_of(collector.log.format, key, level, host, problem)
        turns = problem.items("turns")
        first_plan = problem.child("analysis").text("strategy")
    except (BadRecordError, ValueError) as reason:
        collector.refuse(collector.records + 1, str(reason), count=True)
        return
    if not turns:
        collector.refuse(collector.records + 1, f"generated code without an evaluation: {run.task.task_id}", count=True)
    for position, item in enumerate(turns):
        number = collector.records + 1
        with collector.record(number):
            plan = _directive(turns[position - 1]) if position else first_plan
            collector.add(run, _turn(Fields.of(item, "turn"), position, plan, collector, number))


def _run_of(source: str, key: str, level: str, host: tuple[str, str], problem: Fields) -> Run:
    name = problem.text("problem_name") or problem.word("problem_id")
    return Run(
        key=key,
        source=source,
        task=kernelbench_task(int(level) if level.isdecimal() and level.isascii() else None, name),
        device=host[0],
        llm=host[1],
        reference=_reference(problem.text("base_prompt", "prompt")),
    )


def _turn(turn: Fields, position: int, plan: str, collector: Collector, number: int) -> Step:
    code = turn.code("extracted_code")
    if turn.get("eval") is None:
        raise BadRecordError("turn without an evaluation")
    verdict = kernelbench_verdict(turn.child("eval"))
    if not code.strip() and verdict.outcome is not Outcome.CORRECT:
        raise BadRecordError("no candidate: the answer held no code")
    parent = str(position - 1) if position else None
    return collector.step(number, verdict, code, step_id=str(position), parent_id=parent, index=position, plan=plan)


def _reference(prompt: str) -> str:
    """The reference architecture that the prompt holds after its last mention of it."""
    end = prompt.rfind("def get_init_inputs()")
    start = prompt.rfind("import torch\n", 0, end)
    if end < 0 or start < 0:
        return ""
    head, *body = prompt[end:].split("\n")
    inside = takewhile(lambda line: not line.strip() or line[0] in " \t", body)
    return prompt[start:end] + "\n".join((head, *inside)).rstrip() + "\n"


def _directive(turn: object) -> str:
    """What the turn before decided to do next; empty when it left no diagnosis or a broken one."""
    try:
        diagnosis = Fields.of(turn).child("diagnosis")
        return diagnosis.text("directive", "fixes").strip()
    except BadRecordError:
        return ""


def _hardware(problem: object) -> str:
    """Device that the final evaluation of a problem names; a file is of one machine."""
    try:
        return Fields.of(problem).child("final_eval").child("metadata").text("hardware")
    except BadRecordError:
        return ""


RUN = Importer(
    name="kernelbench-run",
    version=2,
    summary="KernelBench run folders: eval_results.json beside the kernels",
    claims=_claims_run,
    companions=_companions_run,
    read=_read_run,
)
AGENTIC = Importer(
    name="kernelbench-agentic",
    version=2,
    summary="turns of an agentic KernelBench run with diagnosis and directive (pango0/KernelBench-Agentic)",
    claims=_claims_agentic,
    read=_read_agentic,
)
