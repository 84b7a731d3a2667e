"""From logs to a memory in six stages, here in the order in which they run: the flow and every other caller use these.

read → describe → embed → cluster → link → validate

``describe`` and ``embed`` work on shards that know nothing of each other, so a caller may run them anywhere and in any
order; ``build`` runs them one after the other. What they give is remembered by content in the cache folder, so a build
that was interrupted continues where it stopped, and an added log is the only one that is read.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from artifacts.codec import encode
from artifacts.memory.attention import AttentionSettings
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Embedding, InputLog, Manifest
from artifacts.memory.store import MemoryStore, MemoryVersion
from artifacts.trajectory import Quarantined
from builder.cluster.clustering import identity, labelled
from builder.cluster.record import ClusterSettings, Labels
from builder.describe.glossary import normalise
from builder.describe.logs import Corpus, DescribedLog, describe_log, gather
from builder.embed.cache import CachedEmbedder
from builder.embed.encoders import DEFAULT_MODEL, Embedder, named_embedder
from builder.link.assemble import assemble
from builder.read.collector import LogFile
from builder.read.reading import discover
from builder.validate.gate import gate
from builder.validate.report import quality

log = logging.getLogger("htam")
"""Progress for people: a command line shows it through its handler, a server as lines of the flow run."""

EXPECTATION = "ridge within sources, isotonic"
"""How gains are expected of a state; in the manifest so that a memory with another way is another version."""
MOST_SHARDS = 32
LEAST_BYTES = 2_000_000
"""A shard of logs below this is not worth a task: reading it takes less than starting the task elsewhere."""
LEAST_TEXTS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """How a memory is built; small, so that it travels to any worker.

    Attributes:
        name: of the memory.
        model: encoder, see :func:`builder.embed.encoders.named_embedder`.
        cache: folder for described logs and text vectors, shared by all workers; not part of a memory's identity.
        replay: validate the memory on held-out operators and write the figures into its manifest.
    """

    name: str
    model: str = DEFAULT_MODEL
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    cache: Path | None = None
    replay: bool = True


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


def build(paths: Iterable[Path | str], settings: BuildSettings) -> BuiltMemory:
    """Build a memory from the logs under ``paths``.

    Adding a log to those of an earlier build with the same cache reads and embeds only the new one and gives the bytes
    that a build from nothing gives.

    Raises:
        BadInputError: a path does not exist, or the logs hold no transition at all.
    """
    if settings.cache is None:
        with tempfile.TemporaryDirectory() as folder:
            return build(paths, replace(settings, cache=Path(folder)))
    corpus = gathered([describe(shard, settings) for shard in read(paths)])
    for shard in texts(corpus):
        embed(shard, settings)
    labels = cluster(corpus, settings)
    memory = validate(link(corpus, labels, settings), settings)
    return BuiltMemory(
        memory=memory,
        read=tuple(item.name for item in corpus.logs if not item.reused),
        reused=tuple(item.name for item in corpus.logs if item.reused),
        quarantined=corpus.quarantined,
    )


def read(paths: Iterable[Path | str]) -> list[tuple[LogFile, ...]]:
    """Stage 1: the logs under ``paths`` in shards of about equal size, neighbours together, each worth a task.

    Raises:
        BadInputError: a path does not exist, or holds no log.
    """
    logs = discover(paths)
    log.info("logs found: %d", len(logs))
    sizes = [item.size for item in logs]
    limit = max(LEAST_BYTES, sum(sizes) // MOST_SHARDS)
    shards: list[list[LogFile]] = []
    filled = limit
    for item, size in zip(logs, sizes, strict=True):
        if filled >= limit:
            shards.append([])
            filled = 0
        shards[-1].append(item)
        filled += size
    return [tuple(shard) for shard in shards]


def describe(shard: Sequence[LogFile], settings: BuildSettings) -> list[DescribedLog]:
    """Stage 2: raw transitions of each log of one shard; logs whose content was described before are remembered."""
    cache = None if settings.cache is None else settings.cache / "described"
    return [describe_log(item, cache) for item in shard]


def gathered(described: Iterable[Sequence[DescribedLog]]) -> Corpus:
    """What all shards gave, as one.

    Raises:
        BadInputError: there is no transition in them.
    """
    corpus = gather(chain.from_iterable(described))
    counts = len(corpus.logs), sum(item.reused for item in corpus.logs), corpus.table.num_rows, len(corpus.quarantined)
    log.info("logs read: %d (%d remembered); steps with a parent: %d; records quarantined: %d", *counts)
    return corpus


def texts(corpus: Corpus) -> list[tuple[str, ...]]:
    """Distinct strategy texts in the words that the encoder sees, in shards that are each worth a task."""
    found = sorted({normalise(text) for text in corpus.table["plan"].unique().to_pylist()})
    log.info("embedding strategy texts: %d distinct", len(found))
    size = max(LEAST_TEXTS, -(-len(found) // MOST_SHARDS))
    return [tuple(found[start : start + size]) for start in range(0, len(found), size)]


def embed(shard: Sequence[str], settings: BuildSettings) -> int:
    """Stage 3: put the vectors of one shard of texts where clustering finds them; returns how many there are."""
    return len(encoder(settings).encode(shard))


def encoder(settings: BuildSettings) -> Embedder:
    """The encoder that ``settings`` name, in front of the vectors that are remembered."""
    inner = named_embedder(settings.model)
    return inner if settings.cache is None else CachedEmbedder(inner=inner, path=settings.cache / "vectors.sqlite")


def cluster(corpus: Corpus, settings: BuildSettings) -> Labels:
    """Stage 4: directions and strategies of the raw transitions."""
    labels = labelled(corpus.table, encoder(settings), settings.cluster)
    log.info("clustered; directions: %d, strategies: %d", len(labels.directions), len(labels.strategies))
    return labels


def link(corpus: Corpus, labels: Labels, settings: BuildSettings) -> Memory:
    """Stage 5: the memory of labelled transitions, with effects, conditions, recipes and risks."""
    used = named_embedder(settings.model)
    inputs = {InputLog(file=item.name, sha256=item.digest) for item in corpus.logs}
    manifest = Manifest(
        name=settings.name,
        settings={"cluster": identity(settings.cluster), "expectation": EXPECTATION},
        scorer=encode(AttentionSettings()),
        embedding=Embedding(name=used.name, sha256=used.sha256),
        inputs=tuple(sorted(inputs, key=lambda item: item.file)),
        quarantined=len(corpus.quarantined),
    )
    memory = assemble(corpus.table, labels, manifest)
    log.info("linked; transitions: %d", len(memory))
    return memory


def validate(memory: Memory, settings: BuildSettings) -> Memory:
    """Stage 6: the memory with its replay figures on held-out operators, unless ``settings`` say not to."""
    found = quality(memory) if settings.replay else ()
    for level in found:
        log.info("replayed %s", level.line)
    if not found:
        log.info("no replay figures: %s", "no decision points" if settings.replay else "not asked for")
    return replace(memory, manifest=replace(memory.manifest, quality=found))


def publish(memory: Memory, store: MemoryStore, *, tag: str = "latest", force: bool = False) -> MemoryVersion:
    """Publish a built memory.

    Raises:
        HtamError: it chooses worse than the best version that was under ``tag``, and ``force`` is not given.
    """
    best = force or keeps_up(memory, store, tag)
    version = store.publish(memory, tag=tag)
    if best:
        store.promote(memory.manifest.name, version.version, best_of(tag))
    return version


def published(
    memory: Memory, store: str, tag: str, force: bool, quarantined: Sequence[Quarantined], work: Path | str
) -> str:
    """Publish and return ``name@version``; what was quarantined goes to ``WORK/quarantine/NAME@VERSION.jsonl``.

    Raises:
        HtamError: as :func:`publish` does.
    """
    version = publish(memory, MemoryStore(store), tag=tag, force=force)
    kept = Path(work) / "quarantine" / f"{version.reference}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("".join(json.dumps(encode(entry)) + "\n" for entry in quarantined), encoding="utf-8")
    log.info("published %s as %s", version.reference, tag)
    return version.reference


def best_of(tag: str) -> str:
    """Tag of the version that builds under ``tag`` are compared with.

    It moves only to what chooses at least as well, so that many small losses are refused as one large loss is.
    """
    return f"best-of-{tag}"


def keeps_up(memory: Memory, store: MemoryStore, tag: str) -> bool:
    """Whether a memory chooses at least as well as the best version under ``tag``; True where there is none.

    Raises:
        HtamError: it is surely worse.
    """
    name = memory.manifest.name
    best = store.tagged(name, best_of(tag)) or store.tagged(name, tag)
    return best is None or gate(store.load(name, best), memory)
