"""Prefect's processes that end with the one that started them: a server for schedules, the embedded one, a runner."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.errors import UnavailableError
from flows.notifications import Notification
from flows.supervised import supervised, supervised_command

if TYPE_CHECKING:
    from prefect.server.api.server import SubprocessASGIServer

START_S = 300.0
"""Seven seconds on a quiet machine, 48 on one with eight times the work it has cores for."""
STOP_S = 5.0


@contextmanager
def running(home: Path, *, port: int) -> Iterator[str]:
    """Run ``prefect server`` with its database in ``home`` and yield the URL of its API.

    Args:
        port: of the loopback address.

    Raises:
        UnavailableError: the server did not answer; its log is in ``home``.
    """
    home.mkdir(parents=True, exist_ok=True)
    url = address(port)
    words = ["server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment |= {"PREFECT_HOME": str(home.absolute()), "PREFECT_UI_API_URL": url}  # else its pages ask port 4200
    with (
        (home / "server.log").open("ab") as log,
        supervised("prefect", words, stop_s=STOP_S, stdout=log, stderr=log, env=environment) as process,
    ):
        _wait(process, url, home)
        yield url


def embedded_server() -> SubprocessASGIServer:
    """The embedded server of this process, supervised: Prefect leaves it behind when its process is killed.

    It is the one instance of port None, which is what Prefect asks for, whether it runs already or will be started.
    """
    import prefect
    from prefect.server.api.server import SubprocessASGIServer  # brings a whole web server along
    from prefect.settings import get_current_settings

    class SupervisedServer(SubprocessASGIServer):
        def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
            words = ["--app-dir", str(prefect.__module_path__.parent), "--factory"]
            words += ["prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(self.port)]
            words += ["--log-level", "error", "--lifespan", "on"]
            environment = os.environ | {
                "PREFECT_UI_ENABLED": "0",
                "PREFECT__SERVER_EPHEMERAL": "1",
                "PREFECT__SERVER_FINAL": "1",
                **get_current_settings().to_environment_variables(exclude_unset=True),
            }
            # Ctrl-C at a terminal reaches a whole process group: a flow can only end in order while its server lives.
            return subprocess.Popen(supervised_command("uvicorn", words), env=environment, start_new_session=True)

    return SupervisedServer()


def address(port: int) -> str:
    """URL of the API of a server of ours."""
    return f"http://127.0.0.1:{port}/api"


def free_port() -> int:
    """A port that nobody listens on, and that no system hands out meanwhile to who asks for any: those are higher.

    Raises:
        UnavailableError: none was found.
    """
    for port in random.sample(range(10_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UnavailableError("no free port for the Prefect server", "name one in [service]: port = 4200")


def _wait(process: subprocess.Popen[Any], url: str, home: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with (
            suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{url}/health", timeout=2),
        ):
            return
        time.sleep(0.2)
    raise UnavailableError("the Prefect server did not start", f"see {home / 'server.log'}")


def cron_problem(cron: str) -> str:
    """Why ``cron`` is no schedule; empty when it is one, or none is given."""
    from prefect.client.schemas.schedules import CronSchedule

    try:
        _ = cron and CronSchedule(cron=cron)
    except ValueError:
        return f"cron {cron!r} is no schedule; five fields such as '0 3 * * *'"
    return ""


def serve(
    items: Sequence[Mapping[str, Any]], *, parallel: int, alone: bool, notifications: Sequence[Notification] = ()
) -> None:
    """Serve deployments until interrupted, from a process of their own, which this one can end at any moment.

    Prefect ends its runner in order only while its server answers, and asks it with patience: a request may take a
    minute. Here it has a few seconds, then it is killed with all that it runs.

    Args:
        items: arguments of :func:`flows.deployments.deployment`.
        parallel: flow runs at a time.
        alone: nobody else serves these deployments, so that what looks unfinished at the start was lost.

    Raises:
        UnavailableError: serving ended by itself; why is on standard error.
    """
    order = {"items": items, "parallel": parallel, "alone": alone, "notifications": [*map(asdict, notifications)]}
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "text": True}
    with supervised("flows.deployments", [], stop_s=STOP_S, stop=signal.SIGINT, **options) as process:
        process.communicate(json.dumps(order))
    raise UnavailableError(f"serving ended with exit code {process.returncode}", "see the lines above")
