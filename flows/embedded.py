"""Prefect's embedded server on a leash: Prefect leaves it behind when the process that started it is killed."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import prefect
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from flows.leash import leashed_command


class LeashedServer(SubprocessASGIServer):
    """What Prefect starts, with its settings, but leashed to this process."""

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        words = ["--app-dir", str(prefect.__module_path__.parent), "--factory", "prefect.server.api.server:create_app"]
        words += ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error", "--lifespan", "on"]
        environment = os.environ | {
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT__SERVER_FINAL": "1",
            **get_current_settings().to_environment_variables(exclude_unset=True),
        }
        # Ctrl-C at a terminal reaches a whole process group: a flow can only end in order while its server lives.
        return subprocess.Popen(leashed_command("uvicorn", words), env=environment, start_new_session=True)


def leashed_server() -> SubprocessASGIServer:
    """The embedded server of this process, whether it runs already or Prefect will start it."""
    return LeashedServer()  # the one instance of port None, which is what Prefect asks for
