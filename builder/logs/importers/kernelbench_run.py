"""KernelBench run folders: ``eval_results.json`` beside ``level_L_problem_P_sample_S_kernel.py``.

The samples of a problem are independent: each is a root of the problem's trajectory. The reference time, which
the evaluation does not keep, comes from ``baseline_time*.json`` where such a file lies in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.features import detect_language
from artifacts.outcome import Outcome
from artifacts.task_identity import kernelbench_task
from artifacts.trajectory import Step
from builder.logs.fields import BadRecordError, Fields, checked_code
from builder.logs.files import MAX_SOURCE_BYTES, UnreadableError, read_json, read_text
from builder.logs.gathering import Gathering, Run
from builder.logs.logfile import LogFile
from builder.logs.probe import Probe
from builder.logs.verdict import Verdict, kernelbench_verdict

MS = 1000.0
_KERNEL = re.compile(r"^level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py$")


@dataclass(frozen=True, slots=True)
class KernelBenchRun:
    """Importer of run folders."""

    name: str = "kernelbench-run"
    version: int = 2
    summary: str = "KernelBench run folders: eval_results.json beside the kernels"

    def claims(self, probe: Probe) -> bool:
        """A directory with evaluation results and kernels named by level, problem and sample."""
        return "eval_results.json" in probe.entries and any(_KERNEL.match(name) for name in probe.entries)

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Results, kernels and baselines."""
        names = (entry.name for entry in path.iterdir() if entry.is_file() and not entry.is_symlink())
        return tuple(path / name for name in sorted(names) if name == "eval_results.json" or _wanted(name))

    def read(self, log: LogFile, books: Gathering) -> None:
        """One trajectory a problem; kernels without a result are quarantined."""
        kernels = {match.groups(): log.path / match.group(0) for match in map(_KERNEL.match, _names(log)) if match}
        try:
            results = Fields.of(read_json(log.path / "eval_results.json"), "eval_results.json")
        except (UnreadableError, BadRecordError) as problem:
            books.refuse(None, str(problem), count=True)
            results = Fields({})
        folder = _Folder(log.path.name, kernels, _baselines(log), set())
        for number, (problem_key, item) in enumerate(_samples(results), start=1):
            with books.record(number):
                _enter(books, folder, problem_key, Fields.of(item, "sample"), number)
        for key in sorted(set(kernels) - folder.used):
            books.refuse(None, f"kernel without an evaluation: level {key[0]} problem {key[1]}", count=True)


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


def _enter(books: Gathering, folder: _Folder, problem_key: str, record: Fields, number: int) -> None:
    level, _, problem = problem_key.rpartition("/")
    sample = record.word("sample_id") or "0"
    found_level, path = folder.kernel(level or None, problem, sample)
    task = kernelbench_task(int(found_level), problem)
    source = f"{books.log.format}/{folder.name}"
    verdict = kernelbench_verdict(record)
    run = Run(key=f"{found_level}/{problem}", source=source, task=task, device=verdict.device)
    code = checked_code(read_text(path, MAX_SOURCE_BYTES), path.name)
    baseline = folder.baselines.get(task.task_id, verdict.baseline_us)
    books.add(run, _step(books, sample, code, verdict, baseline, number))


def _step(books: Gathering, sample: str, code: str, verdict: Verdict, baseline: float | None, number: int) -> Step:
    return Step(
        step_id=sample,
        parent_id=None,
        index=0,
        code=code,
        language=detect_language(code),
        outcome=verdict.outcome,
        provenance=books.provenance(number),
        error=verdict.error,
        runtime_us=verdict.runtime_us if verdict.outcome is Outcome.CORRECT else None,
        baseline_us=baseline,
        statistic=verdict.statistic,
        flags=verdict.flags,
    )


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
