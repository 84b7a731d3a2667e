"""Turns of an agentic KernelBench run with diagnosis and directive texts (pango0/KernelBench-Agentic).

One file is one method: ``levels.<level>.<problem>.turns[]``. A turn refines the one before it; what it set
out to do is the directive that ended the turn before, or the strategy of the analysis for the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from artifacts.features import detect_language
from artifacts.outcome import Outcome
from artifacts.task_identity import kernelbench_task, slugify
from artifacts.trajectory import Step
from builder.logs.fields import BadRecordError, Fields
from builder.logs.files import UnreadableError, read_json
from builder.logs.gathering import Gathering, Run
from builder.logs.logfile import LogFile
from builder.logs.probe import Probe
from builder.logs.verdict import kernelbench_verdict


@dataclass(frozen=True, slots=True)
class KernelBenchAgentic:
    """Importer of ``gen_results.json``."""

    name: str = "kernelbench-agentic"
    version: int = 2
    summary: str = "turns of an agentic KernelBench run with diagnosis and directive (pango0/KernelBench-Agentic)"

    def claims(self, probe: Probe) -> bool:
        """A JSON object with ``meta`` and ``levels`` of problems."""
        return probe.is_object and probe.has_keys("meta", "levels", "problem_name", "extracted_code")

    def companions(self, path: Path) -> tuple[Path, ...]:
        """None: a file stands alone."""
        return ()

    def read(self, log: LogFile, books: Gathering) -> None:
        """One trajectory a problem."""
        try:
            whole = Fields.of(read_json(log.path), "file")
            meta = whole.child("meta")
            method, llm = slugify(meta.text("method")), meta.text("model")
            problems = list(_problems(whole.child("levels")))
            device = next(filter(None, (_hardware(problem) for _, _, problem in problems)), "")
        except (UnreadableError, BadRecordError) as problem:
            books.refuse(None, str(problem), count=True)
            return
        for level, key, data in problems:
            _enter_problem(books, f"{method}/{level}/{key}", level, (device, llm), data)


def _problems(levels: Fields) -> Iterator[tuple[str, str, Any]]:
    for level in levels.data:
        for key, problem in levels.child(level).data.items():
            yield level, key, problem


def _enter_problem(books: Gathering, key: str, level: str, host: tuple[str, str], data: Any) -> None:
    try:
        problem = Fields.of(data, "problem")
        run = _run(books.log.format, key, level, host, problem)
        turns = problem.items("turns")
        first_plan = problem.child("analysis").text("strategy")
    except (BadRecordError, ValueError) as reason:
        books.refuse(books.records + 1, str(reason), count=True)
        return
    if not turns:
        books.refuse(books.records + 1, f"generated code without an evaluation: {run.task.task_id}", count=True)
    for position, item in enumerate(turns):
        number = books.records + 1
        with books.record(number):
            plan = _directive(turns[position - 1]) if position else first_plan
            books.add(run, _step(Fields.of(item, "turn"), position, plan, books, number))


def _run(source: str, key: str, level: str, host: tuple[str, str], problem: Fields) -> Run:
    name = problem.text("problem_name") or problem.word("problem_id")
    return Run(
        key=key,
        source=source,
        task=kernelbench_task(int(level) if level.isdecimal() and level.isascii() else None, name),
        device=host[0],
        llm=host[1],
        reference=_reference(problem.text("base_prompt", "prompt")),
    )


def _step(turn: Fields, position: int, plan: str, books: Gathering, number: int) -> Step:
    code = turn.code("extracted_code")
    if turn.get("eval") is None:
        raise BadRecordError("turn without an evaluation")
    verdict = kernelbench_verdict(turn.child("eval"))
    if not code.strip() and verdict.outcome is not Outcome.CORRECT:
        raise BadRecordError("no candidate: the answer held no code")
    return Step(
        step_id=str(position),
        parent_id=str(position - 1) if position else None,
        index=position,
        code=code,
        language=detect_language(code),
        outcome=verdict.outcome,
        provenance=books.provenance(number),
        plan=plan,
        error=verdict.error,
        runtime_us=verdict.runtime_us,
        baseline_us=verdict.baseline_us,
        statistic=verdict.statistic,
        flags=verdict.flags,
    )


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
