"""Writing small trees safely on any fsspec file system."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from artifacts.errors import ArtifactError

TEMPORARY = ".tmp-"


class Files:
    """A root on an fsspec file system, with the few operations a store needs.

    Args:
        url: a local path or any fsspec URL (``s3://bucket/memories``, ``memory://x``).
    """

    def __init__(self, url: str) -> None:
        try:
            self._fs, self.root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as problem:
            raise ArtifactError(
                f"store {url!r} cannot be opened: {problem}", "give a path or an fsspec URL"
            ) from problem
        self._local = isinstance(self._fs, LocalFileSystem)
        if self._local and Path(self.root).is_file():
            raise ArtifactError(f"store {url!r} is a file", "give a folder or an fsspec URL")

    def path(self, *parts: str) -> str:
        """Full path of ``parts`` below the root."""
        return "/".join([self.root.rstrip("/"), *parts])

    def read(self, *parts: str) -> bytes:
        """Bytes of one file.

        Raises:
            FileNotFoundError: there is none.
        """
        data: bytes = self._fs.cat_file(self.path(*parts))
        return data

    def exists(self, *parts: str) -> bool:
        """Whether a file or folder is there, asked afresh."""
        self._fs.invalidate_cache()
        return bool(self._fs.exists(self.path(*parts)))

    def names(self, *parts: str) -> list[str]:
        """Names of the entries of a folder, sorted; empty when there is no such folder."""
        self._fs.invalidate_cache()
        try:
            entries = self._fs.ls(self.path(*parts), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def modified(self, *parts: str) -> float:
        """Time of the last write in seconds since the epoch; 0 where the file system does not keep it."""
        try:
            return float(self._fs.modified(self.path(*parts)).timestamp())
        except (NotImplementedError, FileNotFoundError, KeyError):
            return 0.0

    def require_writable(self) -> None:
        """Try to write into the root; one that is not there yet is left so, the first write makes it.

        Raises:
            OSError: it cannot be written.
        """
        if self.exists():
            probe = f"{TEMPORARY}{uuid.uuid4().hex}"
            self.write(b"", probe)
            self.remove(probe)
        elif self._local:
            above = next(folder for folder in Path(self.root).parents if folder.exists())
            if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))

    def remove(self, *parts: str) -> None:
        """Remove a file or a whole folder."""
        self._fs.rm(self.path(*parts), recursive=True)

    def write(self, data: bytes, *parts: str) -> None:
        """Replace one file so that readers see the old bytes or the new ones, never a part."""
        target = self.path(*parts)
        if not self._local:
            self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._fs.pipe_file(target, data)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        draft = Path(target).parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            write_durably(draft, data)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(Path(target).parent)

    def write_tree(self, files: Mapping[str, bytes], last: str, *parts: str) -> None:
        """Write ``files`` as one folder; ``last`` is written after all others and makes the folder count.

        On a local disk the folder appears by one rename. On an object store readers must take a folder without
        ``last`` for no folder at all. A folder that is already complete is left as it is.
        """
        ordered = [name for name in files if name != last] + [last]
        if not self._local:
            for name in ordered:
                self.write(files[name], *parts, name)
            return
        target = Path(self.path(*parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        draft.mkdir()
        try:
            for name in ordered:
                write_durably(draft / name, files[name])
            sync_folder(draft)
            _move(draft, target, last)
        finally:
            _clear(draft)
        sync_folder(target.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write ``data`` and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _move(draft: Path, target: Path, last: str) -> None:
    try:
        draft.rename(target)
    except OSError:
        # Somebody else published the same folder first; without its last file it is a leftover that ours may replace.
        if (target / last).exists():
            return
        _clear(target)
        draft.rename(target)


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    for entry in folder.iterdir():
        entry.unlink(missing_ok=True)
    folder.rmdir()
