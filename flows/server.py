"""A Prefect server of our own on loopback, for hosts that have none: schedules need one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from artifacts.errors import UnavailableError

START_S = 120.0
STOP_S = 20.0


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
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    environment |= {"PREFECT_HOME": str(home.absolute()), "PREFECT_UI_API_URL": url}  # else its pages ask port 4200
    with (home / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _wait(process, url, home)
        yield url
    finally:
        _stop(process)


def address(port: int) -> str:
    """URL of the API of a server of ours."""
    return f"http://127.0.0.1:{port}/api"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], url: str, home: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with (
            suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{url}/health", timeout=2),
        ):
            return
        time.sleep(0.2)
    raise UnavailableError("the Prefect server did not start", f"see {home / 'server.log'}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its children: they are a process group of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
