"""The stages of a build as Prefect tasks: each is a function of :mod:`builder.build` and has its name.

Nothing large is kept by Prefect: described logs and vectors are remembered by content in the work folder, so a build
that was interrupted continues where it stopped, whichever worker runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task

from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from artifacts.trajectory import Quarantined
from builder import build
from flows.engine import MAPPED, STAGE

read = task(name="read", **STAGE)(build.read)
describe = task(name="describe", **MAPPED)(build.describe)
gathered = task(name="gather", **STAGE)(build.gathered)
texts = task(name="cut-texts", **STAGE)(build.texts)
embed = task(name="embed", **MAPPED)(build.embed)
cluster = task(name="cluster", **STAGE)(build.cluster)
link = task(name="link", **STAGE)(build.link)
validate = task(name="validate", **STAGE)(build.validate)


@task(name="publish", **MAPPED)
def publish(memory: Memory, store: str, tag: str, force: bool, quarantined: Sequence[Quarantined], work: str) -> str:
    """Publish and return ``name@version``; what was quarantined is kept beside the work for the memory's page."""
    version = build.publish(memory, MemoryStore(store), tag=tag, force=force)
    build.keep_quarantine(version.reference, quarantined, Path(work))
    build.log.info("published %s as %s", version.reference, tag)
    return version.reference
