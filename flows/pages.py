"""What flows leave on Prefect's own pages: progress, tables and links."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.futures import PrefectFuture

if TYPE_CHECKING:
    from flows.suite import SuiteResult

log = logging.getLogger("htam")
"""Progress for people: on a command line through its handler, on a server as lines of the flow run."""

UPDATES = 50
"""Updates of a progress bar a map makes at most, roughly: each is a call to the server."""


def followed(futures: Sequence[PrefectFuture[Any]], what: str, *, raising: bool = True) -> list[Any]:
    """Results of mapped tasks in their order, with a progress bar on the page of the run.

    Args:
        raising: False leaves the exception of a failed task among the results.
    """
    if not futures:
        return []
    bar = cast(UUID, create_progress_artifact(progress=0.0, description=f"{len(futures)} {what}"))
    every_so_many = max(1, len(futures) // UPDATES)
    results = []
    for done, future in enumerate(futures, 1):
        results.append(future.result(raise_on_failure=raising))
        if done % every_so_many == 0 or done == len(futures):
            log.info("%d of %d %s", done, len(futures), what)
            update_progress_artifact(bar, progress=100.0 * done / len(futures))
    return results


def suite_table(results: Sequence[SuiteResult]) -> None:
    """One row a task of a suite."""
    rows = [_suite_row(result) for result in results]
    create_table_artifact(key="optimize-suite", table=rows, description="Tasks of the suite with their best candidates")


def _suite_row(result: SuiteResult) -> dict[str, Any]:
    finished: Mapping[str, Any] = result.finished or {}
    speedups = finished.get("speedups") or {}
    return {
        "task": result.entry.task_id,
        "run": result.entry.run,
        "steps": finished.get("steps", ""),
        "vs eager": f"{speedups['eager']:.2f}" if "eager" in speedups else "",
        "result": str(result.problem) if result.problem else finished.get("reason", "not finished"),
    }


def quality_table(reference: str, quality: Mapping[str, float]) -> None:
    """Replay figures of a published memory."""
    rows = [{"figure": name, "value": round(value, 4)} for name, value in sorted(quality.items())]
    create_table_artifact(key="memory-quality", table=rows, description=f"Replay figures of {reference}")


def report_link(path: Path) -> None:
    """Link to a written report."""
    create_link_artifact(key="report", link=path.absolute().as_uri(), link_text=path.name)


def message(key: str, text: str) -> None:
    """One paragraph, also logged."""
    log.info(text)
    create_markdown_artifact(key=key, markdown=text)
