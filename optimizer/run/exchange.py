"""Answers and measurements that travel as files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.batch_file import read_answers
from optimizer.llm.cassette import Cassette
from optimizer.llm.protocol import LlmAnswer
from optimizer.run.opening import OpenRun
from optimizer.run.resources import CASSETTE
from optimizer.search.session import Session, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What files said.

    Attributes:
        answers: request key → answer; ``measurements``: job id → measurement.
        problems: ``FILE:LINE: reason`` of lines that could not be used.
    """

    answers: Mapping[str, LlmAnswer]
    measurements: Mapping[str, Measurement]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of what was told.

    Attributes:
        unknown: keys and job ids that nobody waits for, first 12 characters of keys.
    """

    answers: int
    measurements: int
    unknown: tuple[str, ...]


def standing(run: OpenRun) -> Standing:
    """Where a run stands without any model or bench: everything that is open is listed."""
    session = Session(run.tasks, run.arm, run.settings(), run.journal)
    return asyncio.run(session.advance())


def read_told(paths: Iterable[Path]) -> Told:
    """Read files of answers (OpenAI-Batch output) or measurements (worker output), told apart by content.

    Raises:
        BadInputError: a file cannot be read or holds neither.
    """
    answers: dict[str, LlmAnswer] = {}
    measurements: dict[str, Measurement] = {}
    problems: list[str] = []
    for path in paths:
        kind = _kind(path)
        if kind == "answers":
            found = read_answers(path)
            answers |= {key: answer for key, answer in found.answers.items() if key not in answers}
            problems += [f"{path}:{problem.line}: {problem.reason}" for problem in found.problems]
        elif kind == "measurements":
            _read_measurements(path, measurements, problems)
    return Told(answers=answers, measurements=measurements, problems=tuple(problems))


def take(run: OpenRun, told: Told) -> Taken:
    """Log what an open run was told; an answer may open the job that a measurement is for, so this goes round."""
    used_answers: set[str] = set()
    used_jobs: set[str] = set()
    cassette = Cassette(run.log.path / CASSETTE, writable=True)
    try:
        while True:
            found = standing(run)
            requests = {key: item for key, item in found.open_requests.items() if item.key in told.answers}
            jobs = sorted(found.open_jobs.keys() & (told.measurements.keys() - used_jobs))
            if not requests and not jobs:
                break
            for key, request in requests.items():
                answer = told.answers[request.key]
                cassette.append(request, answer)
                run.journal.put("answer", key, encode(answer))
                used_answers.add(request.key)
            for key in jobs:
                run.journal.put("measurement", key, encode(told.measurements[key]))
            used_jobs.update(jobs)
    finally:
        cassette.close()
    known = {key for key, _ in run.journal.of_kind("measurement")}
    lost = [key[:12] for key in told.answers if key not in used_answers and not _answered(run, key)]
    lost += [key for key in told.measurements if key not in known]
    return Taken(answers=len(used_answers), measurements=len(used_jobs), unknown=tuple(lost))


def write_jobs(path: Path, jobs: Iterable[EvaluationJob]) -> int:
    """Write jobs as JSONL for ``python -m optimizer.evaluation.worker``, atomically; return how many."""
    lines = [json.dumps(encode(job), ensure_ascii=True) + "\n" for job in jobs]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="ascii") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return len(lines)


def _answered(run: OpenRun, request_key: str) -> bool:
    return any(
        run.journal.get("answer", key) is not None and request_key == _request_key(payload)
        for key, payload in run.journal.of_kind("request")
    )


def _request_key(payload: Mapping[str, object]) -> str:
    from optimizer.llm.protocol import LlmRequest

    return decode(LlmRequest, payload).key


def _kind(path: Path) -> str:
    """What a file holds; nothing, when a worker had nothing to do."""
    try:
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except OSError as problem:
        raise BadInputError(f"cannot read {path}: {problem.strerror}", "check the path") from problem
    if not first:
        return ""
    try:
        data = json.loads(first)
    except ValueError:
        data = None
    if isinstance(data, dict) and "job_id" in data:
        return "measurements"
    if isinstance(data, dict) and "custom_id" in data:
        return "answers"
    raise BadInputError(
        f"{path} holds neither answers nor measurements",
        "give an OpenAI-Batch output file or the output of optimizer.evaluation.worker",
    )


def _read_measurements(path: Path, measurements: dict[str, Measurement], problems: list[str]) -> None:
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            job_id, measurement = str(data["job_id"]), decode(Measurement, data["measurement"])
        except (ValueError, KeyError, TypeError) as problem:
            problems.append(f"{path}:{number}: no measurement: {problem!r}")
        except BadInputError as problem:
            problems.append(f"{path}:{number}: {problem}")
        else:
            if measurement.outcome is Outcome.INFRA_ERROR:
                problems.append(f"{path}:{number}: {job_id} stays open, the host failed: {measurement.error}")
            else:
                measurements.setdefault(job_id, measurement)
