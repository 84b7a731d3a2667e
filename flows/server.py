"""A Prefect server of our own on loopback, for hosts that have none: schedules need one."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from artifacts.errors import UnavailableError
from flows.leash import leashed

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
        leashed("prefect", words, stop_s=STOP_S, stdout=log, stderr=log, env=environment) as process,
    ):
        _wait(process, url, home)
        yield url


def address(port: int) -> str:
    """URL of the API of a server of ours."""
    return f"http://127.0.0.1:{port}/api"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
