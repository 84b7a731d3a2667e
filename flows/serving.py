"""Serving deployments in a process of its own, which the process that asked for it can end at any moment.

Prefect ends its runner in order only while its server answers, and asks it with patience: a request may take a minute.
Here it has a few seconds, then it is killed with all that it runs.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from artifacts.errors import UnavailableError
from flows.leash import leashed

STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One flow to serve.

    Attributes:
        flow: key of :data:`flows.deployments.FLOWS`.
        work_pool: whose workers run it; empty for this host.
        cron: five fields, in UTC; ``every_s``: seconds between runs. Both empty: on demand only.
    """

    name: str
    flow: str
    parameters: Mapping[str, Any]
    cron: str = ""
    every_s: float = 0.0
    work_pool: str = ""
    tags: tuple[str, ...] = ()


def serve(items: Sequence[Deployment], *, parallel: int, alone: bool) -> None:
    """Serve until interrupted; work pools are left to their workers.

    Args:
        parallel: flow runs at a time.
        alone: nobody else serves these deployments, so that what looks unfinished at the start was lost.

    Raises:
        UnavailableError: serving ended by itself; why is on standard error.
    """
    order = {"items": [asdict(item) for item in items], "parallel": parallel, "alone": alone}
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "text": True}
    with leashed("flows.deployments", [], stop_s=STOP_S, stop=signal.SIGINT, **options) as process:
        process.communicate(json.dumps(order))
    raise UnavailableError(f"serving ended with exit code {process.returncode}", "see the lines above")
