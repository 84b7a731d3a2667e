"""Holding a run's memory while the run is not finished, so that no collection takes it away in between.

A finished run names its memory in its log; ``htam memory gc --runs FOLDER`` keeps those as well.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from artifacts.memory.retention import pin, release
from artifacts.memory.store import MemoryStore
from optimizer.run.manifest import RunManifest


def hold_memory(path: Path, manifest: RunManifest) -> bool:
    """Pin the memory of the run in ``path``; False when it has none or its store cannot be written to."""
    if not manifest.memory:
        return False
    name, _, version = manifest.memory.partition("@")
    try:
        pin(MemoryStore(manifest.store), name, version, holder(path, manifest))
    except OSError:  # a store that this run may only read is collected by those who may write to it
        return False
    return True


def release_memory(path: Path, manifest: RunManifest) -> None:
    """Let go of what :func:`hold_memory` pinned."""
    if manifest.memory:
        try:
            release(MemoryStore(manifest.store), manifest.memory.partition("@")[0], holder(path, manifest))
        except OSError:  # as above: what could not be pinned need not be released
            return


def holder(path: Path, manifest: RunManifest) -> str:
    """Name of a run's pin: its id, and where it is, because ids are folder names and may repeat."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"run-{re.sub(r'[^a-z0-9]+', '-', manifest.run_id.lower())[:40]}-{place}"
