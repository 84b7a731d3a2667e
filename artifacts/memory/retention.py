"""Removing versions that nobody needs any more: never one that a tag, a pin or a run log holds."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.errors import BadInputError
from artifacts.memory.store import MANIFEST, PINS, TAGS, MemoryStore, checked

RUN_MANIFEST = "manifest.json"
LEFTOVER_S = 3600.0
"""Age from which an unfinished publish is taken for a crashed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did, or would do.

    Attributes:
        removed: versions that nothing holds, and leftovers of crashed publishers.
        kept: version to what holds it.
    """

    removed: tuple[str, ...]
    kept: Mapping[str, str] = field(default_factory=dict)


def gc(
    store: MemoryStore, name: str, *, runs: Iterable[Path | str] = (), newest: int = 1, dry_run: bool = False
) -> Collected:
    """Remove versions of ``name`` that no tag, no pin and none of ``runs`` holds.

    Args:
        runs: run directories, or folders that hold run directories at any depth.
        newest: that many of the newest versions are kept whatever holds them.
        dry_run: say what would be removed and remove nothing.

    Raises:
        BadInputError: a path in ``runs`` does not exist: removing would be a guess.
    """
    held = _held(store, name, runs)
    versions = store.versions(name)
    for version in versions[len(versions) - newest :] if newest > 0 else ():
        held.setdefault(version, "one of the newest")
    removable = [version for version in versions if version not in held] + _leftovers(store, name)
    if not dry_run:
        for entry in removable:
            store.files.remove(name, entry)
    return Collected(removed=tuple(removable), kept={item: held[item] for item in versions if item in held})


def pin(store: MemoryStore, name: str, version: str, run: str) -> None:
    """Hold ``version`` for a run, named by its id, until :func:`release`."""
    store.files.write(f"{version}\n".encode(), name, PINS, checked(run, "run id"))


def release(store: MemoryStore, name: str, run: str) -> None:
    """Let go of what ``run`` held; a run that holds nothing is fine."""
    if store.files.exists(name, PINS, checked(run, "run id")):
        store.files.remove(name, PINS, run)


def _held(store: MemoryStore, name: str, runs: Iterable[Path | str]) -> dict[str, str]:
    held = {store.files.read(name, PINS, run).decode().strip(): f"run {run}" for run in store.files.names(name, PINS)}
    for path in runs:
        held |= {version: f"run log {where}" for version, where in _in_runs(store, name, Path(path))}
    return held | {version: f"tag {tag}" for tag, version in store.tags(name).items()}


def _in_runs(store: MemoryStore, name: str, root: Path) -> Iterable[tuple[str, Path]]:
    """Versions that run manifests below ``root`` mention, however the manifest is laid out."""
    if not root.exists():
        raise BadInputError(f"{root}: no such folder of runs", "name the folders that hold your runs")
    known = store.versions(name)
    for manifest in sorted(root.rglob(RUN_MANIFEST)):
        text = manifest.read_text(encoding="utf-8", errors="replace")
        for mentioned in re.findall(rf"{re.escape(name)}@([A-Za-z0-9_.-]+)", text):
            version = mentioned if mentioned in known else store.tagged(name, mentioned.lower())
            if version is not None:
                yield version, manifest.parent


def _leftovers(store: MemoryStore, name: str) -> list[str]:
    """Folders of publishers that died: temporary ones, and on object stores those without a manifest."""
    files = store.files
    unfinished = [
        entry for entry in files.names(name) if entry not in (TAGS, PINS) and not files.exists(name, entry, MANIFEST)
    ]
    written = {
        entry: max(
            [files.modified(name, entry), *(files.modified(name, entry, file) for file in files.names(name, entry))]
        )
        for entry in unfinished
    }
    return [entry for entry in unfinished if time.time() - written[entry] > LEFTOVER_S]
