"""Flows ``build-memory`` and ``rebuild-on-new-logs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, unmapped
from prefect.client.schemas.objects import State

from builder.build import BuildSettings
from builder.embed.encoders import DEFAULT_MODEL
from flows import pages, rebuild, stages
from flows.engine import EngineSettings, followed, task_runner


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
    pages.quality_table(reference, memory.manifest.quality)
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
    fresh = rebuild.new_logs(logs, store, name)
    if not fresh:
        return rebuild.unchanged(store, name, tag)
    run = build_memory.with_options(task_runner=task_runner(EngineSettings(**engine or {})))
    built = run(fresh, store, name, work, model, rebuild.CANDIDATE, True, replay)
    pages.write_report([built, "--store", store, "--work", work], str(Path(work) / "reports" / f"{built}.html"))
    return rebuild.ended(rebuild.promoted_or_not(built, store, tag))
