"""Jobs and results as files of JSON lines, safe against a worker that is killed while it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement
from optimizer.evaluation.job import EvaluationJob


def read_jobs(path: Path) -> list[EvaluationJob]:
    """Jobs of a JSONL file.

    Raises:
        BadInputError: no such file, or a line that is no job; the message has its number.
    """
    if not path.is_file():
        raise BadInputError(f"no jobs file at {path}", "give the file that htam ask wrote")
    jobs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            jobs.append(decode(EvaluationJob, json.loads(line)))
        except json.JSONDecodeError as problem:
            raise BadInputError(f"{path}:{number}: no JSON: {problem}", "write the jobs file again") from problem
        except BadInputError as problem:
            raise BadInputError(f"{path}:{number}: {problem.what}", problem.fix) from problem
    return jobs


def finished_jobs(path: Path) -> dict[str, Measurement]:
    """Measurements of a results file by job id, the last of several.

    A torn last line is cut off; any other line that is no result stays where it is and counts for nothing.
    """
    if not path.is_file():
        return {}
    done: dict[str, Measurement] = {}
    whole = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            done |= _result(line)
    os.truncate(path, whole)
    return done


def _result(line: bytes) -> dict[str, Measurement]:
    try:
        result = json.loads(line)
        return {str(result["job_id"]): decode(Measurement, result["measurement"])}
    except (ValueError, KeyError, TypeError, BadInputError):
        return {}


def write_results(path: Path, results: Iterator[tuple[str, Measurement]]) -> int:
    """Append results as they come, each synced; return how many."""
    count = 0
    with path.open("a", encoding="utf-8") as file:
        for job_id, measurement in results:
            file.write(json.dumps({"job_id": job_id, "measurement": encode(measurement)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            count += 1
    return count
