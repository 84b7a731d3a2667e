"""Prefect and the memory store."""

from __future__ import annotations

import os
import urllib.request
from importlib.metadata import version

from artifacts.errors import HtamError
from artifacts.memory.files import Files
from artifacts.memory.store import MemoryStore
from pipeline.doctor.finding import Finding, broken, good, missing

TOO_NEW = {"fastapi": ((0, 155), "flows die at import"), "sqlalchemy": ((2, 1), "schedules silently never fire")}
"""First versions with which Prefect 3.8 fails, and how; see constraints.txt."""


def prefect() -> Finding:
    """Versions around Prefect that a plain resolve gets wrong."""
    for package, (limit, effect) in TOO_NEW.items():
        found = version(package)
        if tuple(int(part) for part in found.split(".")[:2]) >= limit:
            return broken("prefect", f"{package} {found}: {effect}", "pip install -c constraints.txt -e .")
    return good(
        "prefect", f"{version('prefect')} with fastapi {version('fastapi')}, sqlalchemy {version('sqlalchemy')}"
    )


def prefect_home() -> Finding:
    """Where Prefect keeps its database, whether a server is used and answers; telemetry."""
    import flows

    server = os.environ.get("PREFECT_API_URL", "")
    home = os.environ.get("PREFECT_HOME", "prefect below the work folder")
    off = os.environ.get("DO_NOT_TRACK") == "1" or os.environ.get("PREFECT_SERVER_ANALYTICS_ENABLED") == "false"
    text = f"server {server or 'embedded'}, home {home}, telemetry {'off' if off else 'on'}"
    if server and not _healthy(server):
        return broken("prefect home", f"{text}; it does not answer", "start it, or unset PREFECT_API_URL")
    if not off:
        return missing("prefect home", text, f"unset DO_NOT_TRACK so that {flows.__name__} can switch it off")
    return good("prefect home", text)


def _healthy(server: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server}/health", timeout=5):
            return True
    except (OSError, ValueError):
        return False


def store(url: str) -> Finding:
    """Whether the store can be read and written."""
    try:
        memories = MemoryStore(url)
        names = memories.names()
        probe = Files(url)
        if not probe.exists():
            return good("store", f"{url} does not exist yet, the first build makes it")
        probe.require_writable()
    except (HtamError, OSError) as problem:
        return broken("store", f"{url}: {problem}", "choose another --store, or correct its rights")
    return good("store", f"{url} can be written; memories: {', '.join(names) or 'none yet'}")
