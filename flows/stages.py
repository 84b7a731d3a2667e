"""Steps of a build as Prefect tasks: each calls one function of the builder.

Nothing large is kept by Prefect: drafts and vectors are remembered by content in the work folder, so a build that was
interrupted goes on where it stopped, whichever worker runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from prefect import task
from prefect.cache_policies import NO_CACHE

from artifacts.codec import encode
from artifacts.memory.htg import Memory
from artifacts.memory.replay_figures import replay_figures
from artifacts.memory.store import MemoryStore
from artifacts.trajectory import Quarantined
from builder import build
from builder.drafting import DraftedLog, draft_log
from builder.glossary import normalise
from builder.link.labels import Labels
from builder.logs.discover import discover
from builder.logs.logfile import LogFile
from flows.engine import RETRY, EngineSettings
from flows.order import BuildOrder, caching_embedder, embedder, log_shards, text_shards
from flows.pages import log

STAGE: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
MAPPED: dict[str, Any] = {**STAGE, **RETRY}


@task(name="find-logs", **STAGE)
def find_logs(paths: Sequence[str]) -> list[tuple[LogFile, ...]]:
    """Logs below ``paths`` in shards."""
    logs = discover(paths)
    log.info("found %d logs", len(logs))
    return log_shards(logs)


@task(name="read-and-describe", **MAPPED)
def draft_shard(shard: Sequence[LogFile], order: BuildOrder) -> list[DraftedLog]:
    """Read, describe and draft one shard; logs whose content was drafted before are remembered."""
    cache, refiner = build.draft_cache(order.settings), build.refiner(order.settings)
    return [draft_log(item, cache, refiner) for item in shard]


@task(name="gather", **STAGE)
def gather(drafted: Sequence[Sequence[DraftedLog]]) -> tuple[pa.Table, list[DraftedLog]]:
    """All drafts as one table, and the logs they came from, in the order of discovery."""
    logs = [item for shard in drafted for item in shard]
    table = build.gather(logs)
    reused = sum(item.reused for item in logs)
    quarantined = sum(len(item.quarantined) for item in logs)
    text = "read %d logs (%d remembered): %d steps with a parent, %d records quarantined"
    log.info(text, len(logs), reused, table.num_rows, quarantined)
    return table, logs


@task(name="cut-texts", **STAGE)
def cut_texts(drafts: pa.Table) -> list[tuple[str, ...]]:
    """Distinct strategy texts in the words that the encoder sees, in shards."""
    texts = sorted({normalise(text) for text in drafts["plan"].unique().to_pylist()})
    log.info("%d distinct strategy texts", len(texts))
    return text_shards(texts)


@task(name="embed", **MAPPED)
def embed_shard(texts: Sequence[str], order: BuildOrder) -> int:
    """Put the vectors of ``texts`` where clustering finds them; returns how many there are."""
    return len(caching_embedder(order).encode(texts))


@task(name="cluster", **STAGE)
def cluster(drafts: pa.Table, order: BuildOrder, embedded: Sequence[int]) -> Labels:
    """Directions and strategies of the drafts, once all texts are embedded."""
    # No other task of the build runs meanwhile, so that terms are looked for by as many processes as there are cores.
    settings = replace(order.settings, workers=EngineSettings().parallel)
    labels = build.group(drafts, embedder(order.model), settings)
    named = f"{len(labels.directions)} directions, {len(labels.strategies)} strategies"
    log.info("clustered %d texts into %s", sum(embedded), named)
    return labels


@task(name="link", **STAGE)
def link(drafts: pa.Table, labels: Labels, logs: Sequence[DraftedLog], order: BuildOrder) -> Memory:
    """Transitions, conditions, effects and risks."""
    memory = build.link(drafts, labels, logs, embedder(order.model), order.settings)
    log.info("linked %d transitions", len(memory))
    return memory


@task(name="judge", **STAGE)
def judge(memory: Memory, order: BuildOrder) -> Memory:
    """Replay on held-out tasks."""
    judged = build.judge(memory, order.settings)
    figures = replay_figures(judged.manifest.quality)
    for level in figures:
        log.info("replayed %s", level.line)
    if not figures:
        log.info("no replay figures: %s", "nothing to judge by" if order.replay else "not asked for")
    return judged


@task(name="publish", **MAPPED)
def publish(memory: Memory, order: BuildOrder, logs: Sequence[DraftedLog], tag: str, force: bool) -> str:
    """Publish and return ``name@version``; what was quarantined is kept beside the work for the memory's page."""
    version = build.publish(memory, MemoryStore(order.store), tag=tag, force=force)
    keep_quarantine(version.reference, [entry for item in logs for entry in item.quarantined], Path(order.work))
    log.info("published %s as %s", version.reference, tag)
    return version.reference


def keep_quarantine(reference: str, entries: Sequence[Quarantined], work: Path) -> None:
    """Write quarantined records of a build to ``WORK/quarantine/NAME@VERSION.jsonl``."""
    folder = work / "quarantine"
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(encode(entry)) + "\n" for entry in entries)
    (folder / f"{reference}.jsonl").write_text(lines, encoding="utf-8")
