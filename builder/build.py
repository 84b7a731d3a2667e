"""From logs to a memory, in plain steps that a flow can map: draft each log, group all, link, judge, publish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.memory.attention import AttentionSettings
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Embedding, InputLog, Manifest
from artifacts.memory.store import MemoryStore, MemoryVersion
from artifacts.trajectory import Quarantined
from builder.cluster import ClusterSettings, identity
from builder.describe.refine import CachedRefiner, OpenAIRefiner, Refiner
from builder.drafting import DraftCache, DraftedLog, draft_logs
from builder.embed import CachedEmbedder, Embedder
from builder.judge.quality import gate, quality
from builder.link.assemble import assemble
from builder.link.drafts import DRAFTS
from builder.link.grouping import grouped
from builder.link.labels import Labels
from builder.link.repeats import with_repeats_flagged
from builder.logs.discover import discover

EXPECTATION = "ridge, corrected"
"""How gains are expected of a state; in the manifest so that a memory with another way is another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """How a memory is built; part of its identity except for ``cache`` and ``workers``.

    Attributes:
        name: of the memory.
        cache: folder for drafted logs and text vectors; None remembers nothing.
        replay: judge the memory by replay and write the figures into its manifest.
        refine: language model that rewrites texts written from code differences; empty for none.
        workers: processes that read and describe logs, and look for terms in their texts.
        refine_url: its OpenAI-compatible endpoint; None for the library's default.
    """

    name: str
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    cache: Path | None = None
    replay: bool = True
    refine: str = ""
    refine_url: str | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltMemory:
    """A memory that is not published yet, with what its logs gave.

    Attributes:
        read, reused: logs that were read, and that were remembered from an earlier build.
        quarantined: records that could not be read, with file, line and reason.
    """

    memory: Memory
    read: tuple[str, ...]
    reused: tuple[str, ...]
    quarantined: tuple[Quarantined, ...]


def build(paths: Iterable[Path | str], embedder: Embedder, settings: BuildSettings) -> BuiltMemory:
    """Build a memory from the logs under ``paths``.

    Adding a log to those of an earlier build with the same cache reads and embeds only the new one and gives the bytes
    that a build from nothing gives.

    Raises:
        BadInputError: a path does not exist, or the logs hold no transition at all.
    """
    logs = list(draft_logs(discover(paths), draft_cache(settings), refiner(settings), settings.workers))
    drafts = gather(logs)
    logs = [log.without_rows() for log in logs]
    labels = group(drafts, embedder, settings)
    memory = link(drafts, labels, logs, embedder, settings)
    return BuiltMemory(
        memory=judge(memory, settings),
        read=tuple(log.name for log in logs if not log.reused),
        reused=tuple(log.name for log in logs if log.reused),
        quarantined=tuple(entry for log in logs for entry in log.quarantined),
    )


def draft_cache(settings: BuildSettings) -> DraftCache | None:
    """Cache of drafted logs that ``settings`` name."""
    return None if settings.cache is None else DraftCache(settings.cache / "drafts")


def gather(logs: Iterable[DraftedLog]) -> pa.Table:
    """Drafts of all logs in the order of their ids, so that the order of the logs does not matter.

    A log that repeats another one byte by byte counts once; an edge that two logs share is flagged in the second.

    Raises:
        BadInputError: there is no transition in them.
    """
    distinct = {log.digest: log.table for log in logs}
    table = pa.concat_tables(list(distinct.values()) or [DRAFTS.empty_table()])
    if not table.num_rows:
        raise BadInputError("the logs hold no step with a parent", "htam logs inspect shows what was read and why")
    return with_repeats_flagged(table.unify_dictionaries().sort_by("transition_id").combine_chunks())


def refiner(settings: BuildSettings) -> Refiner | None:
    """Who rewrites written texts, with answers remembered in the cache folder; None when nobody does."""
    if not settings.refine:
        return None
    model = OpenAIRefiner(model=settings.refine, base_url=settings.refine_url)
    return model if settings.cache is None else CachedRefiner(inner=model, path=settings.cache / "answers.sqlite")


def group(drafts: pa.Table, embedder: Embedder, settings: BuildSettings) -> Labels:
    """Directions and strategies of the drafts."""
    if settings.cache is not None:
        embedder = CachedEmbedder(inner=embedder, path=settings.cache / "vectors.sqlite")
    return grouped(drafts, embedder, settings.cluster, settings.workers)


def link(
    drafts: pa.Table, labels: Labels, logs: Sequence[DraftedLog], embedder: Embedder, settings: BuildSettings
) -> Memory:
    """The memory of labelled drafts."""
    manifest = Manifest(
        name=settings.name,
        settings={"cluster": identity(settings.cluster), "refine": settings.refine, "expectation": EXPECTATION},
        scorer=encode(AttentionSettings()),
        embedding=Embedding(name=embedder.name, sha256=embedder.sha256),
        inputs=tuple(sorted({InputLog(file=log.name, sha256=log.digest) for log in logs}, key=lambda item: item.file)),
        quarantined=sum(len(log.quarantined) for log in logs),
    )
    return assemble(drafts, labels, manifest)


def judge(memory: Memory, settings: BuildSettings) -> Memory:
    """``memory`` with its replay figures, unless ``settings`` say not to."""
    if not settings.replay:
        return memory
    return replace(memory, manifest=replace(memory.manifest, quality=quality(memory)))


def publish(built: Memory, store: MemoryStore, *, tag: str = "latest", force: bool = False) -> MemoryVersion:
    """Publish a built memory.

    Raises:
        HtamError: replay says that it is worse than the version under ``tag``, and ``force`` is not given.
    """
    name = built.manifest.name
    previous = store.tagged(name, tag)
    if previous is not None and not force:
        gate(store.manifest(name, previous), built.manifest)
    return store.publish(built, tag=tag)
