"""Answers and measurements that travel as files."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.cassette import Cassette
from optimizer.llm.files import answer_of, write_lines
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.run.opening import OpenRun
from optimizer.run.resources import CASSETTE
from optimizer.search.session import Session, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What files held.

    Attributes:
        answers: request key → answer; ``measurements``: job id → measurement.
        problems: ``FILE:LINE: reason`` of lines that could not be used.
    """

    answers: Mapping[str, LlmAnswer]
    measurements: Mapping[str, Measurement]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What became of what was received.

    Attributes:
        unknown: keys and job ids that nobody waits for, first 12 characters of keys.
    """

    answers: int
    measurements: int
    unknown: tuple[str, ...]


def standing(run: OpenRun) -> Standing:
    """Where a run stands without any model or evaluator: everything that is open is listed."""
    session = Session(run.tasks, run.arm, run.settings(), run.effect_log)
    return asyncio.run(session.advance())


def read_received(paths: Iterable[Path]) -> Received:
    """Read files of answers (OpenAI-Batch output) or measurements (worker output); a bad line ends nothing.

    Of several answers to a request, or measurements of a job, the first wins.

    Raises:
        BadInputError: a file cannot be read, or its first line is neither.
    """
    answers: dict[str, LlmAnswer] = {}
    measurements: dict[str, Measurement] = {}
    problems: list[str] = []
    for path in paths:
        own: dict[str, LlmAnswer] = {}
        for number, line in _lines(path):
            try:
                _take(line, own, measurements)
            except (ValueError, BadInputError) as problem:
                problems.append(f"{path}:{number}: {problem}")
        answers = own | answers
    return Received(answers=answers, measurements=measurements, problems=tuple(problems))


def open_request(found: Standing, wanted: str = "") -> tuple[str, LlmRequest]:
    """Place (``TASK/STEP``) of one open request, and the request: the first, or the one that ``wanted`` names.

    Args:
        wanted: the place, its last parts, or the beginning of the key.

    Raises:
        BadInputError: nothing is open, or ``wanted`` names none or several.
    """
    places = found.open_requests
    if not places:
        waits = f"{len(found.open_jobs)} open measurements come first" if found.open_jobs else "nothing is open"
        raise BadInputError(
            f"no prompt waits for an answer: {waits}", "htam optimize --run RUN resumes the run, with --steps for more"
        )
    named = [
        (place, request)
        for place, request in places.items()
        if f"/{place}".endswith(f"/{wanted}") or not wanted or request.key.startswith(wanted)
    ]
    if not named or (wanted and len(named) > 1):
        raise BadInputError(f"{wanted!r} names {len(named)} open prompts", f"one of: {', '.join(list(places)[:6])}")
    return named[0]


def with_answer(received: Received, found: Standing, wanted: str, text: str) -> Received:
    """``received`` and one person's answer to what :func:`open_request` gives.

    Raises:
        BadInputError: as there, or the answer is empty.
    """
    if not text.strip():
        raise BadInputError("the answer is empty", "write a plan and one code block that holds the whole file")
    _, request = open_request(found, wanted)
    return replace(received, answers={**received.answers, request.key: LlmAnswer(text=text, model=request.model)})


def log_received(run: OpenRun, received: Received) -> Logged:
    """Log what an open run waits for; an answer may open the job that a measurement is for, so this is repeated."""
    used_answers: set[str] = set()
    used_jobs: set[str] = set()
    cassette = Cassette(run.log.path / CASSETTE, writable=True)
    try:
        while True:
            found = standing(run)
            requests = {key: item for key, item in found.open_requests.items() if item.key in received.answers}
            jobs = sorted(found.open_jobs.keys() & (received.measurements.keys() - used_jobs))
            if not requests and not jobs:
                break
            for key, request in requests.items():
                answer = received.answers[request.key]
                cassette.append(request, answer)
                run.effect_log.put("answer", key, encode(answer))
                used_answers.add(request.key)
            for key in jobs:
                run.effect_log.put("measurement", key, encode(received.measurements[key]))
            used_jobs.update(jobs)
    finally:
        cassette.close()
    log = run.effect_log
    answered = {decode(LlmRequest, asked).key for key, asked in log.of_kind("request") if log.get("answer", key)}
    measured = {key for key, _ in log.of_kind("measurement")}
    unknown = [key[:12] for key in received.answers if key not in answered]
    unknown += [key for key in received.measurements if key not in measured]
    return Logged(answers=len(used_answers), measurements=len(used_jobs), unknown=tuple(unknown))


def write_jobs(path: Path, jobs: Iterable[EvaluationJob]) -> int:
    """Write jobs as JSONL for ``python -m optimizer.evaluation.worker``, atomically; return how many."""
    return write_lines(path, (encode(job) for job in jobs))


def _lines(path: Path) -> list[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; none, when a worker had nothing to do."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BadInputError(f"cannot read {path}: {problem.strerror}", "check the path") from problem
    found = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if found and not re.search(rb'"(?:job|custom)_id"', found[0][1]):
        raise BadInputError(
            f"{path} holds neither answers nor measurements",
            "give an OpenAI-Batch output file or the output of optimizer.evaluation.worker",
        )
    return found


def _take(line: bytes, answers: dict[str, LlmAnswer], measurements: dict[str, Measurement]) -> None:
    """Put what a line holds where it belongs.

    Raises:
        BadInputError, ValueError: it holds nothing that can be used.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInputError("not JSON, or cut short") from None
    if not isinstance(data, dict):
        raise BadInputError(f"expected an object, got {type(data).__name__}")
    if "job_id" in data:
        measurement = decode(Measurement, data.get("measurement"))
        if measurement.outcome is Outcome.INFRA_ERROR:
            raise BadInputError(f"{data['job_id']} stays open, the host failed: {measurement.error}")
        measurements.setdefault(str(data["job_id"]), measurement)
        return
    key, answer = answer_of(data)
    if key in answers:
        raise BadInputError("a second answer to the same request")
    answers[key] = answer
