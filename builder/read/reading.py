"""From paths to logs, and from logs to trajectories: formats found by content, one log independent of all others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from artifacts.errors import BadInputError
from builder.read.collector import Collector, Importer, LogFile, LogResult
from builder.read.files import Probe, digest, is_regular
from builder.read.importers import (
    cudaforge,
    flashinfer,
    kernelagent,
    kernelbench,
    kernelmem,
    lineage,
    native,
    openevolve,
    sessions,
    ssnti1111,
    steps,
    tables,
)
from builder.read.trust import flag_trajectory, impossible

MAX_DEPTH = 12
CONVERT = (
    "`htam logs formats` lists what can be read; anything else can be written as steps, one a line with its code "
    "(docs/reference/logs.md), and tried with `htam logs check`"
)
_MEASURED = re.compile(r"latency|runtime|speedup|time_(?:us|ms)|_(?:us|ms)$|tflops|correct", re.IGNORECASE)


class Unread(NamedTuple):
    """A file below a given path that is no log."""

    name: str
    reason: str
    path: Path


def discover(paths: Iterable[Path | str], *, allow_empty: bool = False) -> tuple[LogFile, ...]:
    """Return the logs under ``paths``, in path order.

    Args:
        allow_empty: a path that holds no log is no mistake, as for an inbox that is looked into by the clock.

    Raises:
        BadInputError: a path does not exist, or nothing below it is a log of a known format.
    """
    found, _ = survey(paths, allow_empty=allow_empty)
    return found


def survey(
    paths: Iterable[Path | str], *, allow_empty: bool = False
) -> tuple[tuple[LogFile, ...], tuple[tuple[str, str], ...]]:
    """Return the logs under ``paths`` and (name, reason) of every other file there.

    Raises:
        BadInputError: as :func:`discover`.
    """
    logs: list[LogFile] = []
    others: list[Unread] = []
    for path in map(Path, paths):
        if not path.exists():
            raise BadInputError(f"{path}: no such file or directory", "give files or directories that hold logs")
        items = list(_walk(path.resolve(), path.name if path.is_file() else "", 0))
        found = [item for item in items if isinstance(item, LogFile)]
        if not found and not allow_empty:
            raise BadInputError(f"{path}: no log of a known format", CONVERT)
        logs += found
        others += [item for item in items if isinstance(item, Unread)]
    used = {companion for log in logs for companion in log.companions}
    return tuple(logs), tuple((item.name, item.reason) for item in others if item.path not in used)


def _walk(path: Path, name: str, depth: int) -> Iterator[LogFile | Unread]:
    probe = Probe(path)
    importer = claim(probe)
    if importer is not None:
        yield LogFile(path=path, format=importer.name, name=name or path.name, companions=importer.companions(path))
    elif not probe.is_dir:
        yield Unread(name, _unknown(probe), path)
    elif depth >= MAX_DEPTH:
        yield Unread(name, f"directories nested deeper than {MAX_DEPTH}", path)
    else:
        for entry in sorted(probe.entries):
            yield from _inside(path / entry, f"{name}/{entry}" if name else entry, depth + 1)


def _unknown(probe: Probe) -> str:
    """Why a file is no log; a table of experiments is named as such, because its owner would expect it to be one."""
    measured = sorted(name for name in probe.fields if _MEASURED.search(name))
    if not measured:
        return "no known log format"
    return f"no known log format, though it has {measured[0]!r}: {CONVERT}"[:300]


def _inside(path: Path, name: str, depth: int) -> Iterator[LogFile | Unread]:
    if path.is_symlink():
        yield Unread(name, "symbolic link, not followed", path)
    elif path.is_dir() or is_regular(path):
        yield from _walk(path, name, depth)
    else:
        yield Unread(name, "not a plain file", path)


def log_digest(log: LogFile) -> str:
    """SHA-256 over the files of a log: what a cache of its result is keyed by, with the importer's version."""
    return digest((*(() if log.path.is_dir() else (log.path,)), *log.companions))


def read(log: LogFile, known_digest: str | None = None) -> LogResult:
    """Read one log; depends on its files alone, so results can be cached by digest and computed in any order.

    Args:
        known_digest: what :func:`log_digest` gave, for callers that asked it already.
    """
    importer = importer_for(log.format)
    collector = Collector(log=log, version=importer.version, digest=known_digest or log_digest(log))
    importer.read(log, collector)
    return collector.result(flag_trajectory, impossible)


IMPORTERS: tuple[Importer, ...] = (
    native.IMPORTER,
    lineage.IMPORTER,
    steps.IMPORTER,
    sessions.IMPORTER,
    kernelbench.RUN,
    kernelagent.TRACES,
    kernelmem.IMPORTER,
    cudaforge.IMPORTER,
    openevolve.CHECKPOINTS,
    flashinfer.IMPORTER,
    ssnti1111.IMPORTER,
    kernelbench.AGENTIC,
    tables.MLSYS26,
    tables.CUDA_L1,
    tables.KERNELBENCHX,
    openevolve.TRACE,
    kernelagent.DATABASE,
    tables.CUDA_ENGINEER,
)
"""Every importer; the first that claims a path reads it, so the more particular ones come first."""


def importer_for(name: str) -> Importer:
    """Return the importer of a format.

    Raises:
        BadInputError: no importer has this name.
    """
    for importer in IMPORTERS:
        if importer.name == name:
            return importer
    raise BadInputError(f"unknown log format {name!r}", f"one of: {', '.join(each.name for each in IMPORTERS)}")


def claim(probe: Probe) -> Importer | None:
    """The importer that recognises the content at ``probe.path``, if any does."""
    return next((importer for importer in IMPORTERS if importer.claims(probe)), None)
