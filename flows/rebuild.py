"""Steps of a periodic rebuild: is there anything new, and may the new version take the old one's place?"""

from __future__ import annotations

from collections.abc import Sequence

from prefect import task
from prefect.client.schemas.objects import State
from prefect.states import Completed

from artifacts.errors import HtamError
from artifacts.memory.store import MemoryStore, split_reference
from builder.build import best_of, keeps_up
from builder.read.reading import discover, log_digest
from flows import pages
from flows.engine import STAGE, log

CANDIDATE = "candidate"
"""Tag of the newest version a rebuild made, promoted or not."""


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
    log.info("%d logs, %d of them new", len(now), len(now - known))
    return [path for path, logs in found.items() if logs] if now and now != known else []


def unchanged(store: str, name: str, tag: str) -> State[dict[str, str]]:
    """End of a rebuild without new logs."""
    text = f"{name}: no new logs, nothing built"
    pages.message("rebuild", text)
    version = MemoryStore(store).tagged(name, tag) or ""
    return ended({"version": version, "built": "", "reason": text})


def ended(result: dict[str, str]) -> State[dict[str, str]]:
    """The state whose name and message say what a rebuild did."""
    name = "Unchanged"
    if result["built"]:
        name = "Promoted" if result["built"].endswith(f"@{result['version']}") else "Kept"
    return Completed(name=name, message=result["reason"], data=result)


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
    pages.message("rebuild", reason)
    return {"version": memories.tagged(name, tag) or "", "built": built, "reason": reason}
