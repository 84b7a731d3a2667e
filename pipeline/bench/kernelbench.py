"""A KernelBench checkout and a folder of candidates for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.candidate import source_hash
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement, Outcome
from optimizer.tasks import Task, load_task

_TASK = re.compile(r"(\d+)_.*\.py")
_CANDIDATE = re.compile(r"(?:level_(\d+)_problem|kernelbench_(\d+))_(\d+)(?:_sample_(\d+))?(?!\d).*\.py")
"""Names in KernelBench's run folders (``level_1_problem_3_sample_0_kernel.py``), the same without a sample, and those
of winners in ``best`` of a run (``kernelbench_1_3_….py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One task of the benchmark, as its level and number name it."""

    level: int
    number: int
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherVerdict:
    """What the benchmark's own evaluator says: times in microseconds, None where it gave none."""

    correct: bool | None
    error: str = ""
    time_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One candidate for a problem; ``number`` counts those of the problem from 0.

    ``measurement`` is None while it waits for its turn, ``other`` where the benchmark's own evaluator was not asked.
    """

    problem: Problem
    number: int
    source: str
    measurement: Measurement | None = None
    other: OtherVerdict | None = None

    @property
    def name(self) -> str:
        """As KernelBench names it."""
        return f"level_{self.problem.level}_problem_{self.problem.number}_sample_{self.number}"

    @property
    def sha256(self) -> str:
        """Identity of the candidate."""
        return source_hash(self.source)

    @property
    def agrees(self) -> bool | None:
        """Whether both evaluators say the same; None where one of them gave no verdict."""
        if self.measurement is None or self.other is None or self.other.correct is None:
            return None
        if self.measurement.outcome is Outcome.INFRA_ERROR:
            return None
        return (self.measurement.outcome is Outcome.CORRECT) == self.other.correct


def read_problems(checkout: Path, levels: Sequence[int], numbers: Collection[int] = ()) -> tuple[Problem, ...]:
    """Problems of the wanted levels in order; ``numbers`` selects in each of them, all when empty.

    Raises:
        BadInputError: no such checkout, level or problem.
        BadTaskError: a task file lacks something.
    """
    found = []
    for level in levels:
        folder = _level_folder(checkout, level)
        files = {int(match[1]): path for path in folder.iterdir() if (match := _TASK.fullmatch(path.name))}
        wanted = sorted(files if not numbers else files.keys() & set(numbers))
        found += [Problem(level=level, number=number, task=load_task(files[number])) for number in wanted]
    if not found:
        raise BadInputError(f"{checkout} has none of the wanted problems", "correct --levels or --tasks")
    return tuple(found)


def _level_folder(checkout: Path, level: int) -> Path:
    for root in (checkout / "KernelBench", checkout):
        if (root / f"level{level}").is_dir():
            return root / f"level{level}"
    raise BadInputError(
        f"{checkout} has no KernelBench/level{level}", "name a checkout of KernelBench that has the level"
    )


def read_samples(folder: Path, problems: Sequence[Problem]) -> tuple[Sample, ...]:
    """Candidates of the problems in the order of level, number and sample; files of other problems are left alone.

    Candidates whose names hold no sample are numbered in the order of their names, from the first free number on.

    Raises:
        BadInputError: there is none.
    """
    if not folder.is_dir():
        raise BadInputError(f"no folder at {folder}", "name the folder that holds the candidates")
    known = {(problem.level, problem.number): problem for problem in problems}
    numbered: dict[tuple[int, int], dict[int, Path]] = defaultdict(dict)
    for path, match in sorted(_candidates(folder), key=lambda pair: (pair[1][4] is None, pair[0].name)):
        samples = numbered[int(match[1] or match[2]), int(match[3])]
        number = len(samples) if match[4] is None else int(match[4])
        if number in samples:
            raise BadInputError(f"{samples[number].name} and {path.name} are one sample", "rename one of them")
        samples[number] = path
    found = tuple(
        Sample(problem=known[place], number=number, source=path.read_text(encoding="utf-8", errors="replace"))
        for place in known
        for number, path in sorted(numbered.get(place, {}).items())
    )
    if not found:
        raise BadInputError(
            f"{folder} has no candidate for these problems", "files are called level_1_problem_3.py or the like"
        )
    return found


def _candidates(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    return [(path, match) for path in folder.iterdir() if (match := _CANDIDATE.fullmatch(path.name))]
