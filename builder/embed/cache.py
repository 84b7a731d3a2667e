"""A cache of vectors on disk, keyed by model hash and text hash."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from artifacts.errors import ArtifactError
from builder.embed.encoders import Embedder, Vectors

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS vectors (model TEXT, text TEXT, vector BLOB, PRIMARY KEY (model, text)) WITHOUT ROWID"
)
_CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedEmbedder:
    """Wraps an embedder; only texts never seen before reach it. Safe for several processes at once.

    Args:
        inner: the embedder that makes the vectors.
        path: SQLite file, made when missing; deleting it loses nothing but time.
    """

    inner: Embedder
    path: Path

    @property
    def name(self) -> str:
        """Name of the inner embedder."""
        return self.inner.name

    @property
    def sha256(self) -> str:
        """Hash of the inner embedder."""
        return self.inner.sha256

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See :class:`builder.embed.encoders.Embedder`.

        Raises:
            ArtifactError: the cache file is damaged.
        """
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in texts]
        with self._open() as store:
            known = self._fetch(store, list(dict.fromkeys(keys)))
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing or not texts:
            fresh = self.inner.encode(list(missing.values()))
            if not texts:
                return fresh
            new = dict(zip(missing, fresh, strict=True))
            with self._open() as store:
                rows = [(self.sha256, key, vector.tobytes()) for key, vector in new.items()]
                store.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
            known.update(new)
        return np.stack([known[key] for key in keys])

    def _fetch(self, store: sqlite3.Connection, keys: list[str]) -> dict[str, Vectors]:
        found: dict[str, Vectors] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            query = f"SELECT text, vector FROM vectors WHERE model = ? AND text IN ({marks})"
            for key, blob in store.execute(query, [self.sha256, *part]):
                found[key] = np.frombuffer(blob, dtype=np.float32)
        return found

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        store = sqlite3.connect(self.path, timeout=60)
        try:
            store.execute("PRAGMA journal_mode=WAL")
            store.execute(_SCHEMA)
            with store:
                yield store
        except sqlite3.DatabaseError as problem:
            raise ArtifactError(f"embedding cache {self.path} is unusable: {problem}", "delete the file") from problem
        finally:
            store.close()
