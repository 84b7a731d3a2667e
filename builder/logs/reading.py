"""From logs to trajectories: one log at a time, independent of all others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from builder.logs.discover import survey
from builder.logs.files import digest
from builder.logs.gathering import Gathering
from builder.logs.logfile import LogCollection, LogFile, LogResult
from builder.logs.registry import importer_for
from builder.trust import flag_repeats, flag_trajectory


def log_digest(log: LogFile) -> str:
    """SHA-256 over the files of a log: what a cache of its result is keyed by, with the importer's version."""
    return digest((*(() if log.path.is_dir() else (log.path,)), *log.companions))


def read(log: LogFile, known_digest: str | None = None) -> LogResult:
    """Read one log; depends on its files alone, so results can be cached by digest and computed in any order.

    Args:
        known_digest: what :func:`log_digest` gave, for callers that asked it already.
    """
    importer = importer_for(log.format)
    books = Gathering(log=log, version=importer.version, digest=known_digest or log_digest(log))
    importer.read(log, books)
    return books.result(flag_trajectory)


def read_all(paths: Iterable[Path | str]) -> LogCollection:
    """Read every log under ``paths``; a log that repeats another one byte by byte is read once.

    Raises:
        BadInputError: a path does not exist or holds no log.
    """
    logs, ignored = survey(paths)
    results: dict[str, LogResult] = {}
    repeated: list[tuple[str, str]] = []
    for log in logs:
        result = read(log)
        first = results.setdefault(result.digest, result)
        if first is not result:
            repeated.append((log.name, f"same content as {first.log.name}"))
    return LogCollection(files=with_repeats_flagged(results.values()), ignored=(*ignored, *repeated))


def with_repeats_flagged(results: Iterable[LogResult]) -> tuple[LogResult, ...]:
    """Flag the edges that more than one log holds; the one step of reading that looks across logs."""
    given = tuple(results)
    flagged = iter(flag_repeats(trajectory for result in given for trajectory in result.trajectories))
    return tuple(replace(result, trajectories=tuple(islice(flagged, len(result.trajectories)))) for result in given)
