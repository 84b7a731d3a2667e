"""Files of unknown honesty: a first look at them, and reading within fixed limits of size, line length and nesting."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import json
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from artifacts.archive import Archive

MAX_FILE_BYTES = 256 * 2**20
MAX_LINES_BYTES = 2**30
MAX_LINE_BYTES = 4 * 2**20
MAX_LINES = 1_000_000
MAX_EXPANSION = 50
"""Of packed files, once they unpack to more than a small file's bytes; shipped logs expand 4 times."""
SMALL_BYTES = 64 * 2**20
MAX_SOURCE_BYTES = 2 * 2**20
_BLOCK = 2**20
_UNREADABLE = b"unreadable"
"""Stands for the hash of what cannot be read; reading it will say why."""


class UnreadableError(ValueError):
    """A file or line cannot be read; the message is the reason shown in quarantine."""


def is_regular(path: Path) -> bool:
    """Whether ``path`` is a plain file: no link (a run must not reach outside itself), device, pipe or socket."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def by_number(paths: Iterable[Path], pattern: re.Pattern[str]) -> tuple[Path, ...]:
    """The paths whose name matches ``pattern``, in order of the number in its first group."""
    found = [(match, path) for path in paths if (match := pattern.match(path.name))]
    return tuple(path for match, path in sorted(found, key=lambda pair: (int(pair[0].group(1)), pair[1].name)))


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of the files, in the given order.

    A zip stands for its members, so that a log keeps its digest when sources of it are packed.
    """
    whole = hashlib.sha256()
    for path in paths:
        for name, content in _members(path) if path.suffix == ".zip" else [(path.name, _content(path))]:
            whole.update(name.encode("utf-8", "surrogateescape") + b"\0")
            whole.update(content)
    return whole.hexdigest()


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError:
        return _UNREADABLE


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        archive = open_archive(path)
    except UnreadableError:
        yield path.name, _UNREADABLE
        return
    for name in archive.sizes:
        try:
            yield name, hashlib.sha256(_member(archive, name)).digest()
        except UnreadableError:
            yield name, _UNREADABLE


def open_archive(path: Path) -> Archive:
    """The zip at ``path``.

    Raises:
        UnreadableError: not a plain file, no whole zip, too large, or one that unpacks to too much.
    """
    if not is_regular(path):
        raise UnreadableError("not a plain file")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise UnreadableError(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        archive = Archive(path)
    except OSError as problem:
        raise UnreadableError(f"cannot be unpacked: {problem.strerror}") from problem
    limit = _most_unpacked(size)
    if sum(archive.sizes.values()) > limit:
        raise UnreadableError(f"unpacks to more than {limit} bytes")
    return archive


def _most_unpacked(size: int) -> int:
    return min(MAX_LINES_BYTES, max(SMALL_BYTES, MAX_EXPANSION * size))


def read_member(archive: Archive, name: str) -> str:
    """A source in a zip as text, as :func:`read_text` reads one of :data:`MAX_SOURCE_BYTES` at most.

    Raises:
        UnreadableError: it is missing, damaged, too large, or in another encoding.
    """
    return _decoded(_member(archive, name))


def _member(archive: Archive, name: str) -> bytes:
    if archive.sizes.get(name, 0) > MAX_SOURCE_BYTES:
        raise UnreadableError(f"larger than {MAX_SOURCE_BYTES} bytes")
    try:
        return archive.read(name)
    except OSError as problem:
        raise UnreadableError(f"cannot be read: {problem.strerror}") from problem


def read_text(path: Path, limit: int = MAX_FILE_BYTES) -> str:
    """The file as UTF-8 text (with or without byte-order mark; UTF-16 with one).

    Raises:
        UnreadableError: not a plain file, larger than ``limit`` bytes, or in another encoding.
    """
    if not is_regular(path):
        raise UnreadableError("not a plain file")
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as problem:
        raise UnreadableError(f"cannot be read: {problem.strerror}") from problem
    if len(data) > limit:
        raise UnreadableError(f"larger than {limit} bytes")
    return _decoded(data)


def read_json(path: Path, limit: int = MAX_FILE_BYTES) -> Any:
    """The JSON value in the file.

    Raises:
        UnreadableError: as :func:`read_text`, or no JSON, or nested too deeply.
    """
    return parse_json(read_text(path, limit))


def parse_json(text: str) -> Any:
    """The JSON value in ``text``; NaN and infinities are kept for the fields to refuse.

    Raises:
        UnreadableError: no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as problem:
        raise UnreadableError("JSON nested too deeply") from problem
    except ValueError as problem:
        raise UnreadableError(f"not JSON: {str(problem)[:160]}") from problem


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (1-based line, value or the UnreadableError of this line) for each line that is not blank.

    Memory stays bounded by the longest allowed line, whatever the file; ``.gz`` files are unpacked on the way.
    """
    try:
        opened = _open(path)
    except UnreadableError as problem:
        yield 1, problem
        return
    limit = MAX_LINES_BYTES
    if path.name.endswith(".gz"):
        limit = _most_unpacked(path.stat().st_size)
    with closing(opened) as stream:
        for number, line in _lines(stream, limit):
            if isinstance(line, UnreadableError):
                yield number, line
                continue
            if not line.strip():
                continue
            try:
                yield number, parse_json(_decoded(line))
            except UnreadableError as problem:
                yield number, problem


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str] | UnreadableError]]:
    """Yield (1-based record, row by column name) of a CSV file with a header."""
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.DictReader(io.StringIO(read_text(path).replace("\0", "\ufffd"), newline=""))
    number = 0
    try:
        for number, row in enumerate(reader, start=1):
            found = {name: value for name, value in row.items() if isinstance(name, str) and isinstance(value, str)}
            yield number, found
    except csv.Error as problem:
        yield number + 1, UnreadableError(f"not CSV: {problem}")


def _open(path: Path) -> IO[bytes]:
    if not is_regular(path):
        raise UnreadableError("not a plain file")
    try:
        if path.name.endswith(".gz"):
            return cast(IO[bytes], gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as problem:
        raise UnreadableError(f"cannot be read: {problem.strerror}") from problem


def _lines(stream: IO[bytes], limit: int) -> Iterator[tuple[int, bytes | UnreadableError]]:
    number = total = 0
    while True:
        number += 1
        try:
            line = stream.readline(MAX_LINE_BYTES + 1)
            length = len(line)
            while line and len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                tail = stream.readline(_BLOCK)
                length += len(tail)
                if not tail or tail.endswith(b"\n") or total + length > limit:
                    break
        except (OSError, EOFError, zlib.error) as problem:
            yield number, UnreadableError(f"cannot be unpacked: {type(problem).__name__}")
            return
        if not line:
            return
        total += length
        if total > limit or number > MAX_LINES:
            beyond = f"{limit} bytes" if total > limit else f"{MAX_LINES} lines"
            yield number, UnreadableError(f"file continues beyond {beyond}, the rest was not read: split it")
            return
        yield (
            number,
            line
            if length <= MAX_LINE_BYTES
            else UnreadableError(f"line of {length} bytes, more than {MAX_LINE_BYTES}"),
        )


def _decoded(data: bytes) -> str:
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as problem:
        raise UnreadableError(f"not UTF-8 text at byte {problem.start}") from problem


def parquet_columns(path: Path) -> frozenset[str]:
    """Column names of a Parquet file; empty when it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return frozenset(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return frozenset()


def parquet_rows(path: Path, batch: int = 256) -> Iterator[tuple[int, dict[str, Any] | UnreadableError]]:
    """Yield (1-based record, row by column name) of a Parquet file, a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as table:
            for part in table.iter_batches(batch_size=batch):
                for row in part.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError) as problem:
        yield number + 1, UnreadableError(f"not Parquet: {str(problem)[:160]}")


HEAD_BYTES = 256 * 2**10
_KEY = re.compile(r'"([A-Za-z_][\w .()-]{0,60})"\s*:')


@dataclass(frozen=True)
class Probe:
    """What an importer may look at before it claims a path.

    Attributes:
        path: file or directory.
    """

    path: Path

    @functools.cached_property
    def is_dir(self) -> bool:
        """Whether the path is a directory."""
        return self.path.is_dir()

    @functools.cached_property
    def entries(self) -> frozenset[str]:
        """Names inside a directory; empty for files and for directories that cannot be read."""
        try:
            return frozenset(entry.name for entry in self.path.iterdir()) if self.is_dir else frozenset()
        except OSError:
            return frozenset()

    @functools.cached_property
    def head(self) -> str:
        """First 256 KiB of a plain file as text, unpacked when gzipped; empty otherwise."""
        if self.is_dir or not is_regular(self.path):
            return ""
        try:
            with gzip.open(self.path) if self.path.name.endswith(".gz") else self.path.open("rb") as stream:
                return stream.read(HEAD_BYTES).decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        except (OSError, EOFError, zlib.error):
            return ""

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        """Names of JSON fields in the head, at any depth; columns of a Parquet, CSV or TSV file."""
        if self.is_json:
            return frozenset(_KEY.findall(self.head))
        if self.is_parquet:
            return parquet_columns(self.path)
        header = self.head.split("\n", 1)[0][:10_000]
        comma = "\t" if "\t" in header else ","
        return frozenset(name.strip().strip('"') for name in header.split(comma)) if header else frozenset()

    @property
    def is_json(self) -> bool:
        """Whether the head looks like a JSON object or array, or like JSON lines of objects."""
        return self.head.startswith(("{", "["))

    @property
    def is_parquet(self) -> bool:
        """Whether the file is a Parquet table."""
        return self.head.startswith("PAR1")
