"""Prefect flows and deployments: a flow body is a list of calls, the work is done by builder and optimizer.

Prefect is quiet, private and keeps its files beside the work, unless the user says otherwise.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "htam",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # a busy machine needs more than the usual 20
}
"""Set where the user set nothing: no telemetry, our own log lines on Prefect's page of a run, patience at start."""


def set_defaults() -> None:
    """Fill :data:`DEFAULTS` into the environment; works only before prefect is imported."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def keep_home_in(folder: Path) -> None:
    """Keep Prefect's database and results in ``folder`` and its log on warnings, for one command line.

    A user's own ``PREFECT_HOME``, ``PREFECT_API_URL`` or ``PREFECT_LOGGING_LEVEL`` wins. Must be
    called before prefect is imported.
    """
    if "PREFECT_HOME" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)  # without it the embedded server dies silently, again and again
        os.environ["PREFECT_HOME"] = str(folder.absolute())
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_SERVER_LEVEL", "CRITICAL")  # it is cut off at exit and complains at length
    os.environ.setdefault("PREFECT_INTERNAL_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_TO_API_ENABLED", "false")
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)  # no setting reaches it; it counts what is left at exit


set_defaults()  # before the first import of prefect anywhere below
