"""What the runs of a study wait for, as two files for all of them, and the answers back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.runlog import RunLog
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.batch_file import write_requests
from optimizer.llm.protocol import LlmRequest
from optimizer.run.exchange import Told, read_told, standing, take, write_jobs
from optimizer.run.manifest import LlmSpec
from optimizer.run.opening import OpenRun
from pipeline.study.spec import Cell, cells, read_study
from pipeline.study.studying import bases
from pipeline.study.working import run_folder

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
    told = read_told(files)
    answers = measurements = 0
    for key, path in runs(study).items():
        run = OpenRun.at(path)
        try:
            taken = take(run, _own(told, key))
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


def _own(told: Told, key: str) -> Told:
    """What was told, with the measurements of one run only and under the ids that it knows."""
    own: Mapping[str, str] = {
        name: name.removeprefix(key + SEPARATOR) for name in told.measurements if name.startswith(key + SEPARATOR)
    }
    return replace(told, measurements={short: told.measurements[name] for name, short in own.items()})
