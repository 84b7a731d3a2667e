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
from flows.notifications import Notification
from flows.supervised import supervised

STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One flow to serve.

    Attributes:
        flow: key of :data:`flows.deployments.FLOWS`.
        cron: five fields, in UTC; ``every_s``: seconds between runs. Both empty: on demand only.
    """

    name: str
    flow: str
    parameters: Mapping[str, Any]
    cron: str = ""
    every_s: float = 0.0
    tags: tuple[str, ...] = ()


def cron_problem(cron: str) -> str:
    """Why ``cron`` is no schedule; empty when it is one, or none is given."""
    from prefect.client.schemas.schedules import CronSchedule

    try:
        _ = cron and CronSchedule(cron=cron)
    except ValueError:
        return f"cron {cron!r} is no schedule; five fields such as '0 3 * * *'"
    return ""


def serve(
    items: Sequence[Deployment], *, parallel: int, alone: bool, notifications: Sequence[Notification] = ()
) -> None:
    """Serve until interrupted.

    Args:
        parallel: flow runs at a time.
        alone: nobody else serves these deployments, so that what looks unfinished at the start was lost.

    Raises:
        UnavailableError: serving ended by itself; why is on standard error.
    """
    order = {"items": [asdict(item) for item in items], "parallel": parallel, "alone": alone}
    order["notifications"] = [asdict(item) for item in notifications]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "text": True}
    with supervised("flows.deployments", [], stop_s=STOP_S, stop=signal.SIGINT, **options) as process:
        process.communicate(json.dumps(order))
    raise UnavailableError(f"serving ended with exit code {process.returncode}", "see the lines above")
