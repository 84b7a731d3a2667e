"""Flows ``build-memory`` and ``rebuild-on-new-logs``: is there anything new, and may it take the old one's place?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from artifacts.codec import encode
from artifacts.errors import HtamError
from artifacts.memory.store import MemoryStore, split_reference
from builder.build import BuildSettings, best_of, keeps_up
from builder.embed.encoders import DEFAULT_MODEL
from builder.read.reading import discover, log_digest
from flows import stages
from flows.engine import STAGE, EngineSettings, followed, log, task_runner
from flows.pages import write_report

CANDIDATE = "candidate"
"""Tag of the newest version a rebuild made, promoted or not."""


@flow(name="build-memory", flow_run_name="{name}")
def build_memory(
    logs: list[str],
    store: str,
    name: str,
    work: str = ".htam",
    model: str = DEFAULT_MODEL,
    tag: str = "latest",
    force: bool = False,
    replay: bool = True,
) -> str:
    """Build a memory from the logs below ``logs``, publish it under ``tag``, and return ``name@version``.

    Raises:
        BadInputError: no logs, or nothing in them.
        HtamError: replay is worse than that of the version under ``tag``, and not ``force``.
    """
    settings = BuildSettings(name=name, model=model, cache=Path(work) / "build", replay=replay)
    described = followed(stages.describe.map(stages.read(logs), unmapped(settings)), "shards of logs")
    corpus = stages.gathered(described)
    followed(stages.embed.map(stages.texts(corpus), unmapped(settings)), "shards of texts")
    labels = stages.cluster(corpus, settings)
    memory = stages.validate(stages.link(corpus, labels, settings), settings)
    reference = stages.publish(memory, store, tag, force, corpus.quarantined, work)
    figures = [encode(item) for item in memory.manifest.quality]
    create_table_artifact(key="memory-quality", table=figures, description=f"Replay figures of {reference}")
    return reference


@flow(name="rebuild-on-new-logs", flow_run_name="{name}")
def rebuild_on_new_logs(
    logs: list[str],
    store: str,
    name: str,
    work: str = ".htam",
    model: str = DEFAULT_MODEL,
    tag: str = "latest",
    replay: bool = True,
    engine: dict[str, Any] | None = None,
) -> State[dict[str, str]]:
    """Build ``name`` when its logs hold anything new, and move ``tag`` to it unless its replay is worse.

    Returns:
        ``version`` that ``tag`` points to now, ``built`` (empty when there was nothing new) and the ``reason``, in a
        state called Promoted, Kept or Unchanged.
    """
    fresh = new_logs(logs, store, name)
    if not fresh:
        version = MemoryStore(store).tagged(name, tag) or ""
        return _ended({"version": version, "built": "", "reason": f"{name}: no new logs, nothing built"})
    run = build_memory.with_options(task_runner=task_runner(EngineSettings(**engine or {})))
    built = run(fresh, store, name, work, model, CANDIDATE, True, replay)
    write_report([built, "--store", store, "--work", work], str(Path(work) / "reports" / f"{built}.html"))
    return _ended(promoted_or_not(built, store, tag))


@task(name="look-for-new-logs", **STAGE)
def new_logs(paths: Sequence[str], store: str, name: str) -> list[str]:
    """The paths that hold logs when these are other than those of the last rebuild, by content; empty when not.

    Raises:
        BadInputError: a path that does not exist.
    """
    found = {path: discover([path], allow_empty=True) for path in paths}
    now = {log_digest(log) for logs in found.values() for log in logs}
    memories = MemoryStore(store)
    last = memories.tagged(name, CANDIDATE) or memories.tagged(name, "latest")
    known = {log.sha256 for log in memories.manifest(name, last).inputs} if last else set()
    log.info("logs: %d, of them new: %d", len(now), len(now - known))
    return [path for path, logs in found.items() if logs] if now and now != known else []


@task(name="promote", **STAGE)
def promoted_or_not(built: str, store: str, tag: str) -> dict[str, str]:
    """Point ``tag`` at ``built`` unless replay is worse; it is kept under ``candidate`` either way."""
    memories = MemoryStore(store)
    name, version = split_reference(built)
    try:
        best = keeps_up(memories.load(name, version), memories, tag)
        memories.promote(name, version or "", tag)
        if best:
            memories.promote(name, version or "", best_of(tag))
        reason = f"{built} is {tag} now"
    except HtamError as problem:
        reason = f"{built} is kept as {CANDIDATE} and not promoted: {problem.what}"
    return {"version": memories.tagged(name, tag) or "", "built": built, "reason": reason}


def _ended(result: dict[str, str]) -> State[dict[str, str]]:
    """The state whose name and message say what a rebuild did."""
    log.info(result["reason"])
    create_markdown_artifact(key="rebuild", markdown=result["reason"])
    name = "Unchanged"
    if result["built"]:
        name = "Promoted" if result["built"].endswith(f"@{result['version']}") else "Kept"
    return Completed(name=name, message=result["reason"], data=result)
