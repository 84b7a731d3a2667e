"""Finding logs under paths, by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from artifacts.errors import BadInputError
from builder.logs.files import is_regular
from builder.logs.logfile import LogFile
from builder.logs.probe import Probe
from builder.logs.registry import claim

MAX_DEPTH = 12


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
            raise BadInputError(f"{path}: no log of a known format", "`htam logs formats` lists what can be read")
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
        yield Unread(name, "no known log format", path)
    elif depth >= MAX_DEPTH:
        yield Unread(name, f"directories nested deeper than {MAX_DEPTH}", path)
    else:
        for entry in sorted(probe.entries):
            yield from _inside(path / entry, f"{name}/{entry}" if name else entry, depth + 1)


def _inside(path: Path, name: str, depth: int) -> Iterator[LogFile | Unread]:
    if path.is_symlink():
        yield Unread(name, "symbolic link, not followed", path)
    elif path.is_dir() or is_regular(path):
        yield from _walk(path, name, depth)
    else:
        yield Unread(name, "not a plain file", path)
