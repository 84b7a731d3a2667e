"""The manifest of a memory version: what it holds, what it was made of, how good it is.

A manifest is written in one canonical form that holds its own hash, so that a flipped byte anywhere in it is seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import ArtifactError, BadInputError
from artifacts.memory.migrations import MIGRATIONS, SCHEMA_VERSION, Migration, migrated

OWN_HASH = "manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Integrity of one file: SHA-256 and size of its bytes; ``content`` is the canonical hash of its rows."""

    sha256: str
    content: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLog:
    """A log that was mined: its path below the log root and the SHA-256 of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The encoder that the clusters rest on."""

    name: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a memory version says of itself.

    Attributes:
        schema_version: what the files were written in.
        version: first 16 hex digits of the identity, see :meth:`identity`.
        settings: builder settings; ``scorer``: the attention settings that replay chose.
        expectation: what the state alone predicts, by term; fitted from the rows, so not part of the identity.
        parent: version that was ``latest`` before; not part of the identity.
        libraries: versions of what wrote the files; not part of the identity.
        quality: figures from replay, e.g. ``regret``, ``regret_state_only``, ``ndcg``.
    """

    name: str
    version: str = ""
    schema_version: int = SCHEMA_VERSION
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    scorer: Mapping[str, Any] = field(default_factory=dict)
    embedding: Embedding = field(default_factory=Embedding)
    inputs: tuple[InputLog, ...] = ()
    quality: Mapping[str, float] = field(default_factory=dict)
    quarantined: int = 0
    expectation: Mapping[str, float] = field(default_factory=dict)
    parent: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> str:
        """SHA-256 over the rows, settings, encoder, inputs and figures: equal content gives an equal version."""
        content = {name: entry.content for name, entry in self.files.items()}
        parts = [content, self.settings, self.scorer, self.embedding, self.inputs, self.quality, self.quarantined]
        return hashlib.sha256(_canonical([encode(part) for part in parts])).hexdigest()

    def sealed(self) -> Manifest:
        """The same manifest with its version filled in."""
        return replace(self, version=self.identity()[:16])


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical JSON of ``manifest`` with its own hash."""
    body = encode(manifest)
    return _canonical(body | {OWN_HASH: hashlib.sha256(_canonical(body)).hexdigest()})


def read_manifest(data: bytes, where: str, migrations: Sequence[Migration] = MIGRATIONS) -> Manifest:
    """Inverse of :func:`manifest_bytes`, lifted from the schema version that it was written in.

    Raises:
        ArtifactError: not JSON, changed since it was written, or of a schema version that this release cannot read.
    """
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise ArtifactError(
            f"{where}: the manifest is damaged ({problem})", "restore it or rebuild the memory"
        ) from None
    if not isinstance(parsed, dict) or OWN_HASH not in parsed:
        raise ArtifactError(f"{where}: this is not a memory manifest", "name a published memory")
    body = {name: value for name, value in parsed.items() if name != OWN_HASH}
    if parsed[OWN_HASH] != hashlib.sha256(_canonical(body)).hexdigest() or _canonical(parsed) != data:
        raise ArtifactError(
            f"{where}: the manifest was changed after it was written", "restore it or rebuild the memory"
        )
    body = migrated(body, where, migrations)
    try:
        return decode(Manifest, body)
    except BadInputError as problem:
        raise ArtifactError(f"{where}: {problem.what}", "rebuild the memory with this release") from problem


def _canonical(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True, ensure_ascii=True, indent=1, allow_nan=False) + "\n").encode()
