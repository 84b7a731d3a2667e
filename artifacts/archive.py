"""Zips of small files: bytes that depend on their content alone, and one kind of error for all that can be wrong.

A zip is held in memory as it is on the disk, so that no file stays open; its members are unpacked one at a time.
"""

from __future__ import annotations

import errno
import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The first date that a zip can name."""
MODE = 0o644 << 16


class Archive:
    """A zip that is read.

    Attributes:
        sizes: bytes that each member says it unpacks to, in the order of their names.

    Raises:
        OSError: there is no such file, or it is no whole zip; ``strerror`` says which.
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        with _damage():
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._members = {info.filename: info for info in self._zip.infolist()}
        self.sizes = {name: self._members[name].file_size for name in sorted(self._members)}

    def read(self, name: str) -> bytes:
        """Content of a member.

        Raises:
            FileNotFoundError: there is no such member.
            OSError: it is damaged.
        """
        info = self._members.get(name)
        if info is None:
            raise FileNotFoundError(errno.ENOENT, f"no member {name}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise OSError(errno.EIO, f"damaged: compression {info.compress_type} of {name}")
        with _damage(), self._zip.open(info) as file:
            return file.read(info.file_size)  # without a limit, a member may unpack to more than it says


def write_archive(file: IO[bytes], members: Iterable[tuple[str, bytes]]) -> None:
    """Write names and contents as a zip, in the given order."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name, LONG_AGO)
            info.create_system, info.external_attr = 3, MODE
            archive.writestr(info, content, zipfile.ZIP_DEFLATED, 9)


@contextmanager
def _damage() -> Iterator[None]:
    """Whatever a zip that is not whole makes the standard library raise, as an OSError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError) as problem:
        raise OSError(errno.EIO, f"damaged: {problem or type(problem).__name__}") from problem
