"""What a build is asked to do, and how its work is cut into shards."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build import BuildSettings
from builder.embed import DEFAULT_MODEL, CachedEmbedder, Embedder, named_embedder
from builder.logs.logfile import LogFile

MOST_SHARDS = 32
LEAST_BYTES = 2_000_000
"""A shard below this is not worth a task: reading it takes less than starting the task elsewhere."""
LEAST_TEXTS = 2_000
VECTORS = "vectors.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOrder:
    """Everything that a build's tasks need to know; small, so that it travels to any worker.

    Attributes:
        work: folder for drafts and vectors, shared by all workers.
        model: encoder, see :func:`embedder`.
        replay: judge the memory on held-out tasks.
        refine, refine_url: language model that rewrites texts written from code, and its endpoint; empty for none.
    """

    name: str
    store: str
    work: str = ".htam"
    model: str = DEFAULT_MODEL
    replay: bool = True
    refine: str = ""
    refine_url: str | None = None

    @property
    def cache(self) -> Path:
        """Where drafts and vectors are remembered."""
        return Path(self.work) / "build"

    @property
    def settings(self) -> BuildSettings:
        """Settings of the builder."""
        return BuildSettings(
            name=self.name, cache=self.cache, replay=self.replay, refine=self.refine, refine_url=self.refine_url
        )


@functools.lru_cache(maxsize=2)
def embedder(model: str) -> Embedder:
    """The encoder of that name, loaded once a process; ``hashing`` needs no model."""
    return named_embedder(model)


def caching_embedder(order: BuildOrder) -> CachedEmbedder:
    """The encoder of ``order`` in front of the vectors that all workers share."""
    return CachedEmbedder(inner=embedder(order.model), path=order.cache / VECTORS)


def log_shards(logs: Sequence[LogFile]) -> list[tuple[LogFile, ...]]:
    """Logs in shards of about equal size, neighbours together, each worth a task."""
    sizes = [_size(log) for log in logs]
    limit = max(LEAST_BYTES, sum(sizes) // MOST_SHARDS)
    shards: list[list[LogFile]] = []
    filled = limit
    for log, size in zip(logs, sizes, strict=True):
        if filled >= limit:
            shards.append([])
            filled = 0
        shards[-1].append(log)
        filled += size
    return [tuple(shard) for shard in shards]


def _size(log: LogFile) -> int:
    files = [path for path in (log.path, *log.companions) if path.is_file()]
    return sum(path.stat().st_size for path in files)


def text_shards(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Texts in shards, each worth a task."""
    size = max(LEAST_TEXTS, -(-len(texts) // MOST_SHARDS))
    return [tuple(texts[start : start + size]) for start in range(0, len(texts), size)]
