"""Steps of a periodic rebuild: is there anything new, and may the new version take the old one's place?"""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from artifacts.errors import HtamError
from artifacts.memory.store import MemoryStore, split_reference
from builder.judge.quality import gate
from builder.logs.discover import discover
from builder.logs.reading import log_digest
from flows import pages
from flows.order import BuildOrder
from flows.stages import STAGE

CANDIDATE = "candidate"
"""Tag of the newest version a rebuild made, promoted or not."""


@task(name="look-for-new-logs", **STAGE)
def new_logs(paths: Sequence[str], order: BuildOrder) -> list[str]:
    """The paths that hold logs when these are other than those of the last rebuild, by content; empty when not.

    Raises:
        BadInputError: a path that does not exist.
    """
    found = {path: discover([path], allow_empty=True) for path in paths}
    now = {log_digest(log) for logs in found.values() for log in logs}
    store = MemoryStore(order.store)
    last = store.tagged(order.name, CANDIDATE) or store.tagged(order.name, "latest")
    known = {log.sha256 for log in store.manifest(order.name, last).inputs} if last else set()
    pages.log.info("%d logs, %d of them new", len(now), len(now - known))
    return [path for path, logs in found.items() if logs] if now and now != known else []


def unchanged(order: BuildOrder, tag: str) -> State[dict[str, str]]:
    """End of a rebuild without new logs."""
    text = f"{order.name}: no new logs, nothing built"
    pages.message("rebuild", text)
    version = MemoryStore(order.store).tagged(order.name, tag) or ""
    return ended({"version": version, "built": "", "reason": text})


def ended(result: dict[str, str]) -> State[dict[str, str]]:
    """The state whose name and message say what a rebuild did."""
    name = "Unchanged"
    if result["built"]:
        name = "Promoted" if result["built"].endswith(f"@{result['version']}") else "Kept"
    return Completed(name=name, message=result["reason"], data=result)


@task(name="promote", **STAGE)
def promoted_or_not(built: str, order: BuildOrder, tag: str) -> dict[str, str]:
    """Point ``tag`` at ``built`` unless replay is worse; it is kept under ``candidate`` either way."""
    store = MemoryStore(order.store)
    _, version = split_reference(built)
    before = store.tagged(order.name, tag)
    reason = _worse(store, order.name, before, version or "")
    if not reason:
        store.promote(order.name, version or "", tag)
        reason = f"{built} is {tag} now"
    pages.message("rebuild", reason)
    return {"version": store.tagged(order.name, tag) or "", "built": built, "reason": reason}


def _worse(store: MemoryStore, name: str, before: str | None, after: str) -> str:
    if before is None:
        return ""
    try:
        gate(store.manifest(name, before), store.manifest(name, after))
    except HtamError as problem:
        return f"{name}@{after} is kept as {CANDIDATE} and not promoted: {problem.what}"
    return ""
