"""Flows ``build-memory`` and ``rebuild-on-new-logs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, unmapped
from prefect.client.schemas.objects import State

from builder.embed import DEFAULT_MODEL
from flows import pages, rebuild, stages
from flows.engine import EngineSettings, task_runner
from flows.notify import HOOKS
from flows.order import BuildOrder
from flows.reporting import write_report


@flow(name="build-memory", flow_run_name="{name}", **HOOKS)
def build_memory(
    logs: list[str],
    store: str,
    name: str,
    work: str = ".htam",
    model: str = DEFAULT_MODEL,
    tag: str = "latest",
    force: bool = False,
    replay: bool = True,
    refine: str = "",
    refine_url: str | None = None,
) -> str:
    """Build a memory from the logs below ``logs``, publish it under ``tag``, and return ``name@version``.

    Raises:
        BadInputError: no logs, or nothing in them.
        HtamError: replay is worse than that of the version under ``tag``, and not ``force``.
    """
    order = BuildOrder(
        name=name, store=store, work=work, model=model, replay=replay, refine=refine, refine_url=refine_url
    )
    shards = stages.find_logs(logs)
    drafted = pages.followed(stages.draft_shard.map(shards, unmapped(order)), "shards of logs")
    drafts, read = stages.gather(drafted)
    embedded = pages.followed(stages.embed_shard.map(stages.cut_texts(drafts), unmapped(order)), "shards of texts")
    labels = stages.cluster(drafts, order, embedded)
    memory = stages.judge(stages.link(drafts, labels, read, order), order)
    reference = stages.publish(memory, order, read, tag, force)
    pages.quality_table(reference, memory.manifest.quality)
    return reference


@flow(name="rebuild-on-new-logs", flow_run_name="{name}", **HOOKS)
def rebuild_on_new_logs(
    logs: list[str],
    store: str,
    name: str,
    work: str = ".htam",
    model: str = DEFAULT_MODEL,
    tag: str = "latest",
    replay: bool = True,
    refine: str = "",
    refine_url: str | None = None,
    engine: dict[str, Any] | None = None,
) -> State[dict[str, str]]:
    """Build ``name`` when its logs hold anything new, and move ``tag`` to it unless its replay is worse.

    Returns:
        ``version`` that ``tag`` points to now, ``built`` (empty when there was nothing new) and the ``reason``, in a
        state called Promoted, Kept or Unchanged.
    """
    order = BuildOrder(
        name=name, store=store, work=work, model=model, replay=replay, refine=refine, refine_url=refine_url
    )
    fresh = rebuild.new_logs(logs, order)
    if not fresh:
        return rebuild.unchanged(order, tag)
    run = build_memory.with_options(task_runner=task_runner(EngineSettings(**engine or {})))
    built = run(fresh, store, name, work, model, rebuild.CANDIDATE, True, replay, refine, refine_url)
    write_report([built, "--store", store, "--work", work], str(Path(work) / "reports" / f"{built}.html"))
    return rebuild.ended(rebuild.promoted_or_not(built, order, tag))
