"""The versioned store of memories: publish, load, verify, tags.

``<store>/<name>/<version>/`` holds the Parquet files and, written last, ``manifest.json``; ``<store>/<name>/tags/``
holds one small file a tag. A version is named by its content, so the same content is the same version, whoever
publishes it and how often.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version as installed
from operator import attrgetter

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.errors import ArtifactError
from artifacts.memory import tables
from artifacts.memory.files import TEMPORARY, Files
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import FileEntry, Manifest, manifest_bytes, read_manifest
from artifacts.memory.records import Direction, Edge
from artifacts.memory.schemas import DIRECTIONS, EDGES, SCHEMA_VERSION, SCHEMAS, canonical, content_hash, table_of

MANIFEST = "manifest.json"
TAGS = "tags"
PINS = "pins"
LATEST = "latest"
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
VERSION = re.compile(r"[0-9a-f]{16}")
ROW_GROUP = 250_000
LIBRARIES = ("numpy", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVersion:
    """One published version: where it is, its tags and what its manifest says."""

    name: str
    version: str
    tags: tuple[str, ...]
    published: float
    manifest: Manifest

    @property
    def reference(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"


class MemoryStore:
    """Memories below one local path or fsspec URL.

    Args:
        url: root of the store; it is created by the first publish.
    """

    def __init__(self, url: str) -> None:
        self.url = str(url)
        self.files = Files(self.url)

    def publish(self, memory: Memory, *, tag: str = LATEST) -> MemoryVersion:
        """Write ``memory`` under the name in its manifest and move ``tag`` to it.

        Content that is already there gives the version that it has. Killed at any point, the store is as it was.
        """
        name = checked(memory.manifest.name, "memory name")
        data, entries = _encoded(memory)
        manifest = replace(
            memory.manifest,
            schema_version=SCHEMA_VERSION,
            files=entries,
            parent=self.tagged(name, LATEST),
            libraries=_libraries(),
        ).sealed()
        if not self.files.exists(name, manifest.version, MANIFEST):
            self.files.write_tree({**data, MANIFEST: manifest_bytes(manifest)}, MANIFEST, name, manifest.version)
        self.promote(name, manifest.version, tag)
        return self.describe(name, manifest.version)

    def load(self, name: str, at: str | None = None) -> Memory:
        """Memory ``name`` at a version, an unambiguous beginning of one, or a tag; ``latest`` when None.

        Raises:
            ArtifactError: there is no such memory, or a byte of it is not as it was published.
        """
        manifest = self.manifest(name, self.resolve(name, at))
        data = {file: self._bytes(manifest, file) for file in SCHEMAS}
        parts = {file: self._table(manifest, file, data[file]) for file in SCHEMAS}
        return Memory(
            manifest=manifest,
            directions=tables.records_of(Direction, parts["directions"]),
            strategies=tables.strategies_of(parts["strategies"]),
            edges=tables.records_of(Edge, parts["edges"]),
            table=parts["transitions"],
        )

    def verify(self, name: str, at: str | None = None) -> MemoryVersion:
        """Load, and compare the rows themselves with the manifest, not only the bytes.

        Raises:
            ArtifactError: as for :meth:`load`, or rows, version and manifest do not fit.
        """
        version = self.resolve(name, at)
        manifest = self.manifest(name, version)
        for file in SCHEMAS:
            found = content_hash(self._table(manifest, file, self._bytes(manifest, file)))
            if found != manifest.files[f"{file}.parquet"].content:
                raise _damaged(self.where(name, version, f"{file}.parquet"), "its rows differ from the manifest")
        return self.describe(name, version)

    def manifest(self, name: str, version: str) -> Manifest:
        """Manifest of one version, checked.

        Raises:
            ArtifactError: missing, damaged, or of another memory.
        """
        where = self.where(name, version, MANIFEST)
        try:
            data = self.files.read(name, version, MANIFEST)
        except FileNotFoundError:
            raise ArtifactError(f"{where} is missing", "htam memory list shows what the store holds") from None
        manifest = read_manifest(data, where)
        if manifest.name != name or manifest.version != version or manifest.identity()[:16] != version:
            raise _damaged(where, f"it belongs to {manifest.name}@{manifest.version}")
        if set(manifest.files) != {f"{file}.parquet" for file in SCHEMAS}:
            raise _damaged(where, "its list of files is not that of a memory")
        return manifest

    def resolve(self, name: str, at: str | None = None) -> str:
        """Version that a tag, a version or an unambiguous beginning of one stands for.

        Raises:
            ArtifactError: none or several do.
        """
        checked(name, "memory name")
        wanted = LATEST if at is None else at
        tagged = self.tagged(name, wanted) if NAME.fullmatch(wanted) else None
        if tagged is not None:
            return tagged
        known = self.versions(name)
        found = [version for version in known if version.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if not known:
            names = ", ".join(self.names())
            fix = f"memories there: {names}" if names else "none is there; htam memory build makes one"
            raise ArtifactError(f"store {self.url} holds no memory {name!r}", fix)
        problem = "is ambiguous" if found else "is neither a version nor a tag"
        raise ArtifactError(f"{name}@{wanted} {problem}", f"versions: {', '.join(known)}")

    def names(self) -> tuple[str, ...]:
        """Names of the memories."""
        return tuple(name for name in self.files.names() if NAME.fullmatch(name) and self.versions(name))

    def versions(self, name: str) -> tuple[str, ...]:
        """Complete versions of one memory, oldest first."""
        found = [
            version
            for version in self.files.names(name)
            if version not in (TAGS, PINS) and not version.startswith(TEMPORARY)
        ]
        whole = [version for version in found if self.files.exists(name, version, MANIFEST)]
        return tuple(sorted(whole, key=lambda version: (self.files.modified(name, version, MANIFEST), version)))

    def list(self, name: str | None = None) -> tuple[MemoryVersion, ...]:
        """All versions of one memory or of all."""
        names = self.names() if name is None else (name,)
        return tuple(self.describe(item, version) for item in names for version in self.versions(item))

    def describe(self, name: str, version: str) -> MemoryVersion:
        """One version with its tags."""
        return MemoryVersion(
            name=name,
            version=version,
            tags=tuple(tag for tag, target in self.tags(name).items() if target == version),
            published=self.files.modified(name, version, MANIFEST),
            manifest=self.manifest(name, version),
        )

    def tags(self, name: str) -> dict[str, str]:
        """Tag to version."""
        found = {tag: self.tagged(name, tag) for tag in self.files.names(name, TAGS) if NAME.fullmatch(tag)}
        return {tag: version for tag, version in found.items() if version is not None}

    def tagged(self, name: str, tag: str) -> str | None:
        """Version a tag points to; None when there is no such tag.

        Raises:
            ArtifactError: the tag file is damaged.
        """
        try:
            text = self.files.read(name, TAGS, tag).decode("ascii", "replace")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        version, _, check = text.rstrip("\n").partition(" ")
        if text != _tag_text(version) or not check:
            raise _damaged(self.where(name, TAGS, tag), "a tag file was changed; promote the tag again")
        return version

    def promote(self, name: str, version: str, tag: str) -> None:
        """Point ``tag`` at a version.

        Raises:
            ArtifactError: the tag cannot be a tag, or there is no such version.
        """
        checked(tag, "tag")
        if VERSION.fullmatch(tag):  # it would stand before the version that a run pinned under these digits
            raise ArtifactError(f"tag {tag!r} looks like a version", "choose another name")
        full = version if version in self.versions(name) else self.resolve(name, version)
        self.files.write(_tag_text(full).encode(), name, TAGS, tag)

    def where(self, *parts: str) -> str:
        """Path for messages."""
        return "/".join([self.url.rstrip("/"), *parts])

    def _bytes(self, manifest: Manifest, file: str) -> bytes:
        name = f"{file}.parquet"
        where, entry = self.where(manifest.name, manifest.version, name), manifest.files[name]
        try:
            data = self.files.read(manifest.name, manifest.version, name)
        except FileNotFoundError:
            raise ArtifactError(f"{where} is missing", "restore it or rebuild the memory") from None
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _damaged(where, "its bytes differ from the manifest")
        return data

    def _table(self, manifest: Manifest, file: str, data: bytes) -> pa.Table:
        """Rows of one file, of the schema and number that the manifest promises."""
        table = table_of(data).replace_schema_metadata(None)
        if table.num_rows != manifest.files[f"{file}.parquet"].rows or table.schema != SCHEMAS[file]:
            where = self.where(manifest.name, manifest.version, f"{file}.parquet")
            raise _damaged(where, f"its rows are not those of schema version {manifest.schema_version}")
        return table


def checked(name: str, what: str) -> str:
    """``name`` when it can name a folder safely on every file system.

    Raises:
        ArtifactError: it cannot.
    """
    if not NAME.fullmatch(name) or name in (TAGS, PINS):
        raise ArtifactError(
            f"{what} {name!r} is not allowed", "use lower-case letters, digits, '.', '_' and '-', at most 64"
        )
    return name


def split_reference(reference: str) -> tuple[str, str | None]:
    """``NAME[@VERSION|@TAG]`` in its two parts."""
    name, _, at = reference.partition("@")
    return name, at or None


def _encoded(memory: Memory) -> tuple[dict[str, bytes], dict[str, FileEntry]]:
    """Parquet files of a memory and their entries in the manifest."""
    parts = {
        "directions": tables.record_rows(sorted(memory.directions, key=attrgetter("direction_id")), DIRECTIONS),
        "edges": tables.record_rows(memory.edges, EDGES),
        "sources": tables.source_rows(memory.table),
        "strategies": tables.strategy_rows(memory.strategies),
        "transitions": canonical(memory.table),
    }
    data = {f"{name}.parquet": _parquet(table) for name, table in parts.items()}
    entries = {
        f"{name}.parquet": FileEntry(
            sha256=hashlib.sha256(data[f"{name}.parquet"]).hexdigest(),
            content=content_hash(table),
            size=len(data[f"{name}.parquet"]),
            rows=table.num_rows,
        )
        for name, table in parts.items()
    }
    return data, entries


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, row_group_size=ROW_GROUP)
    return sink.getvalue()


def _tag_text(version: str) -> str:
    return f"{version} {hashlib.sha256(version.encode()).hexdigest()[:16]}\n"


def _libraries() -> Mapping[str, str]:
    return {name: installed(name) for name in LIBRARIES} | {"python": platform.python_version()}


def _damaged(where: str, why: str) -> ArtifactError:
    return ArtifactError(f"{where} is damaged: {why}", "restore it or rebuild the memory")
