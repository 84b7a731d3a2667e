"""Files of a run directory: what they are called, as a run writes them and packed, and how one becomes the other.

Packed files count where both forms are there. Nothing is removed before its other form is whole and on the disk, so
packing and unpacking that were cut short are taken up where they stopped.
"""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from artifacts.archive import Archive, write_archive
from artifacts.candidate import normalise_source, source_hash
from artifacts.errors import RunLogError

MANIFEST = "manifest.json"
EVENTS = ("events.jsonl", "events.jsonl.gz")
CANDIDATES = ("candidates", "candidates.zip")
"""Names, each as a run writes it and packed."""


class CandidateFiles:
    """Sources of a run by identity: a file each, or all in one zip."""

    def __init__(self, run: Path) -> None:
        self.folder, self.packed = (run / name for name in CANDIDATES)
        self._archive: Archive | None = None

    def identities(self) -> tuple[str, ...]:
        """Identities of all, sorted.

        Raises:
            RunLogError: they are packed and damaged.
        """
        names = self._members().sizes if self.packed.exists() else [path.name for path in self.folder.glob("*.py")]
        return tuple(sorted(name.removesuffix(".py") for name in names))

    def read(self, sha256: str) -> bytes:
        """A source as it is stored, once its content is what its name says.

        Raises:
            RunLogError: it is missing, damaged or was changed.
        """
        place = self.packed if self.packed.exists() else self.folder
        name = f"{sha256}.py"
        try:
            data = self._members().read(name) if place is self.packed else (place / name).read_bytes()
            source = data.decode("utf-8", "surrogatepass")
        except FileNotFoundError as problem:
            raise RunLogError(f"{place.parent} lacks candidate {sha256[:12]}", f"restore {place.name}") from problem
        except (OSError, UnicodeDecodeError) as problem:
            raise unreadable(place / name, problem) from problem
        if source_hash(source) != sha256:
            raise RunLogError(f"{place / name} was changed", "restore the file")
        return data

    def add(self, source: str, *, sync: bool) -> str:
        """Store a source and return its identity; ``sync`` brings it to the disk.

        Raises:
            RunLogError: the candidates are packed and this one is not among them.
        """
        sha256, data = source_hash(source), normalise_source(source).encode("utf-8", "surrogatepass")
        if self.packed.exists():
            if f"{sha256}.py" not in self._members().sizes:
                raise takes_no_more(self.packed)
            return sha256
        target = self.folder / f"{sha256}.py"
        if not target.exists() or target.read_bytes() != data:
            part = target.with_suffix(f".{threading.get_ident()}.part")
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            part.replace(target)
        return sha256

    def pack(self) -> None:
        """Move all into the zip.

        Raises:
            RunLogError: as :meth:`read`.
        """
        if not self.packed.exists():
            members = ((f"{sha256}.py", self.read(sha256)) for sha256 in self.identities())
            with written_whole(self.packed) as file:
                write_archive(file, members)
            self._archive = None
        for sha256 in self.identities():
            self.read(sha256)
            (self.folder / f"{sha256}.py").unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def unpack(self) -> None:
        """Undo :meth:`pack`.

        Raises:
            RunLogError: as :meth:`read`.
        """
        if not self.packed.exists():
            return
        self.folder.mkdir(exist_ok=True)
        for sha256 in self.identities():
            data = self.read(sha256)
            with written_whole(self.folder / f"{sha256}.py") as file:
                file.write(data)
        self.packed.unlink()
        self._archive = None

    def _members(self) -> Archive:
        try:
            self._archive = self._archive or Archive(self.packed)
        except OSError as problem:
            raise unreadable(self.packed, problem) from problem
        return self._archive


def events_file(run: Path) -> Path:
    """Where the events of a run are."""
    plain, packed = (run / name for name in EVENTS)
    return packed if packed.exists() else plain


def event_lines(path: Path) -> Iterator[bytes]:
    """Lines of either form of the events, the last one perhaps torn.

    Raises:
        RunLogError: the file is damaged.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            if path.suffix == ".gz" and not path.stat().st_size:
                raise EOFError("it is empty")  # which gzip takes for an empty text
            yield from file
        except (OSError, EOFError, zlib.error) as problem:
            raise unreadable(path, problem) from problem


def pack_events(run: Path) -> None:
    """Compress the events.

    Raises:
        RunLogError: the packed events are damaged, the plain ones are kept.
    """
    plain, packed = (run / name for name in EVENTS)
    if not packed.exists():
        with written_whole(packed) as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as stream:
            stream.writelines(event_lines(plain))
    for _ in event_lines(packed):
        pass
    plain.unlink(missing_ok=True)


def unpack_events(run: Path) -> None:
    """Undo :func:`pack_events`.

    Raises:
        RunLogError: the packed events are damaged.
    """
    plain, packed = (run / name for name in EVENTS)
    if packed.exists():
        with written_whole(plain) as file:
            file.writelines(event_lines(packed))
        packed.unlink()


@contextmanager
def written_whole(target: Path) -> Iterator[IO[bytes]]:
    """A file that has its name once all of it is on the disk."""
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def takes_no_more(packed: Path) -> RunLogError:
    """What to say when a packed file is to be written to."""
    return RunLogError(f"{packed} is packed and takes nothing more", f"htam logs unpack {packed.parent} first")


def unreadable(path: Path, problem: Exception) -> RunLogError:
    """What to say of a file that is damaged or may not be read."""
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return RunLogError(f"{path} cannot be read: {reason}", "restore the file")
