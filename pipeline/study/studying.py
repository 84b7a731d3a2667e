"""A study from its file to its page, and what its runs wait for as files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from artifacts.codec import encode
from artifacts.memory.htg import Memory
from artifacts.memory.shipped import load_memory
from artifacts.runlog import RunLog
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.files import write_requests
from optimizer.llm.protocol import LlmRequest
from optimizer.run.exchange import Received, log_received, read_received, standing, write_jobs
from optimizer.run.manifest import LlmSpec
from optimizer.run.opening import OpenRun
from pipeline.report import page
from pipeline.report.writing import write_run
from pipeline.study.matrix import Entry, entries
from pipeline.study.spec import Cell, Study, cells, read_study
from pipeline.study.working import WaitingError, done, run_folder, work

SECTIONS = (
    ("matrix", "Matrix"),
    ("details", "Details"),
    ("negative", "Negative transfer"),
    ("facts", "How it was run"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What a study gave.

    Attributes:
        base: what its memories are parts of, in words.
        failed, waiting: cells without a result and why; ``waiting`` ones need answers or measurements from files.
    """

    study: Study
    base: str
    entries: tuple[Entry, ...]
    failed: tuple[tuple[str, str], ...]
    waiting: tuple[tuple[str, str], ...]
    page: Path

    def json(self) -> dict[str, Any]:
        """For a program."""
        body = {"study": encode(self.study), "base": self.base, "entries": encode(list(self.entries))}
        left = {"failed": [list(item) for item in self.failed], "waiting": [list(item) for item in self.waiting]}
        return body | left | {"page": str(self.page)}


def run_study(path: Path, *, workers: int) -> StudyResult:
    """Do what is left of the study in ``path`` and write its page.

    Raises:
        BadInputError: the file is wrong.
        ArtifactError: its base memory is not there.
    """
    from flows.engine import EngineSettings, mapped

    study = read_study(path)
    out = Path(study.out)
    memories = bases(study)
    wanted = {cell.key: cell for cell in cells(study, {name: item.reference for name, item in memories.items()})}
    known = {key: found for key, cell in wanted.items() if (found := done(cell, out)) is not None}
    todo = [key for key in wanted if key not in known]

    def one(key: str) -> dict[str, Any]:
        cell = wanted[key]
        return work(cell, out, memories[cell.memory.name] if cell.memory else None)

    results: dict[str, Any] = known | mapped("transfer-study", one, todo, EngineSettings(workers=workers))
    good = [results[key] for key in wanted if not isinstance(results[key], Exception)]
    problems = [(key, results[key]) for key in wanted if isinstance(results[key], Exception)]
    waiting = tuple((key, str(problem)) for key, problem in problems if isinstance(problem, WaitingError))
    failed = tuple((key, str(problem)) for key, problem in problems if not isinstance(problem, WaitingError))
    shown, base = entries(study, good), ", ".join(sorted({item.reference for item in memories.values()}))
    target = page.write(out / "study.html", study_page(study, base, shown, (*failed, *waiting), wanted))
    return StudyResult(study=study, base=base, entries=tuple(shown), failed=failed, waiting=waiting, page=target)


def bases(study: Study) -> dict[str, Memory]:
    """The published memory that each memory of the study is a part of, by the latter's name."""
    references = {memory.name: memory.base or study.base for memory in study.memory}
    loaded = {reference: load_memory(study.store, reference) for reference in sorted(set(references.values()))}
    return {name: loaded[reference] for name, reference in references.items()}


def study_page(
    study: Study,
    base: str,
    found: list[Entry],
    failed: tuple[tuple[str, str], ...],
    wanted: Mapping[str, Cell],
) -> str:
    """Render the matrix page."""
    by_place = {(entry.memory, entry.target, entry.arm): entry for entry in found}
    columns = [(target.name, arm) for target in study.target for arm in _columns(study, target.kind)]
    return page.render(
        "study.html.j2",
        kind="HTAM transfer study",
        title=study.name,
        sections=SECTIONS,
        study=study,
        base=base,
        columns=columns,
        by_place=by_place,
        entries=found,
        links=_run_pages(Path(study.out), {run for entry in found for run in entry.runs}),
        failed=failed,
        cells=len(wanted),
    )


def _run_pages(out: Path, runs: Iterable[str]) -> dict[str, str]:
    """Run directory → link from the page of the study to the page of the run, which is written when it is not there."""
    links = {}
    for run in map(Path, sorted(runs)):
        target = run.with_name(f"{run.name}.html")
        if RunLog.is_run(run):
            links[str(run)] = quote(os.path.relpath(target if target.exists() else write_run(run, target), out))
    return links


def _columns(study: Study, kind: str) -> list[str]:
    return [""] if kind == "replay" else list(study.arms[1:])


REQUESTS = "requests.jsonl"
JOBS = "jobs.jsonl"
SEPARATOR = "::"
"""Between the key of a cell and the id of a job, which is unique in its run only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests or answers, and jobs or measurements; ``problems`` are lines that could not be used."""

    requests: int
    jobs: int
    problems: tuple[str, ...] = ()


def ask(study: Path, folder: Path) -> Counts:
    """Write everything that the study's runs wait for to ``folder``; requests that several runs share are one line."""
    requests: dict[str, LlmRequest] = {}
    jobs: list[EvaluationJob] = []
    for key, path in runs(study).items():
        run = OpenRun.at(path)
        try:
            found = standing(run)
            if LlmSpec.parse(run.manifest.llm).kind == "files":
                requests |= {request.key: request for request in found.open_requests.values()}
            if run.manifest.evaluator == "files":
                jobs += [replace(job, job_id=f"{key}{SEPARATOR}{job.job_id}") for job in found.open_jobs.values()]
        finally:
            run.log.close()
    return Counts(requests=write_requests(folder / REQUESTS, requests.values()), jobs=write_jobs(folder / JOBS, jobs))


def tell(study: Path, files: Sequence[Path]) -> Counts:
    """Give each run what ``files`` hold for it; what is known already is not taken twice."""
    told = read_received(files)
    answers = measurements = 0
    for key, path in runs(study).items():
        run = OpenRun.at(path)
        try:
            taken = log_received(run, _own(told, key))
        finally:
            run.log.close()
        answers, measurements = answers + taken.answers, measurements + taken.measurements
    return Counts(requests=answers, jobs=measurements, problems=told.problems)


def runs(study: Path) -> dict[str, Path]:
    """Runs of a study that have begun, by the key of their cell."""
    read = read_study(study)
    wanted: Sequence[Cell] = list(cells(read, {name: item.reference for name, item in bases(read).items()}))
    found = {cell.key: run_folder(cell, Path(read.out)) for cell in wanted if cell.target.kind == "run"}
    return {key: path for key, path in found.items() if RunLog.is_run(path)}


def _own(told: Received, key: str) -> Received:
    """What was told, with the measurements of one run only and under the ids that it knows."""
    own: Mapping[str, str] = {
        name: name.removeprefix(key + SEPARATOR) for name in told.measurements if name.startswith(key + SEPARATOR)
    }
    return replace(told, measurements={short: told.measurements[name] for name, short in own.items()})
