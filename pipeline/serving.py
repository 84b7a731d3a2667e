"""From a settings file to served deployments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError
from flows.notice import keep
from flows.server import address, free_port, running
from flows.serving import Deployment
from flows.serving import serve as serve_deployments
from pipeline.checking import problems
from pipeline.parameters import parameters_of
from pipeline.settings import Job, TeamSettings, read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Checked settings."""

    path: Path
    settings: TeamSettings

    def lines(self) -> Iterator[str]:
        """One line a job: what it does and when."""
        for job in self.settings.jobs:
            yield f"{type(job).__name__.removesuffix('Job').lower():<10} {job.name:<24} {when(job)}"


def checked(path: Path) -> Jobs:
    """Read a settings file and see whether its jobs could run here.

    Raises:
        BadInputError: the file is wrong, or a job could not run; every problem is in the message.
    """
    settings = read_settings(path)
    found = list(problems(settings))
    if found:
        raise BadInputError(f"{path}: {'; '.join(found)}", "correct it and run htam serve --check again")
    return Jobs(path=path, settings=settings)


def when(job: Job) -> str:
    """Schedule in words."""
    if job.cron:
        return f"cron {job.cron} UTC"
    return f"every {job.every_s:g} s" if job.every_s else "on demand"


def deployments(settings: TeamSettings) -> list[Deployment]:
    """What to serve."""
    return [
        Deployment(name=job.name, flow=flow, parameters=parameters, cron=job.cron, every_s=job.every_s, tags=(flow,))
        for job in settings.jobs
        for flow, parameters in [parameters_of(job, settings.service.work)]
    ] + [
        Deployment(name=job.name, flow="optimize-one", parameters={}, work_pool=job.work_pool, tags=("optimize-one",))
        for job in settings.optimize
        if job.work_pool
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the Prefect server is; ``port`` is 0 when it is not ours to start."""

    url: str
    port: int
    home: Path


def placed(path: Path) -> Place:
    """Tell Prefect where its server is or will be: it reads that once, when it is first imported."""
    service = read_settings(path).service
    home = Path(service.work) / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home.absolute()))
    given = service.server or os.environ.get("PREFECT_API_URL", "")
    port = 0 if given else service.port or free_port()
    os.environ["PREFECT_API_URL"] = url = given or address(port)
    return Place(url=url, port=port, home=home)


def serve(jobs: Jobs, place: Place, announce: Callable[[str], Any]) -> None:
    """Serve until interrupted; ends within seconds of SIGINT or SIGTERM and leaves no process behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep(jobs.settings.notify)
    with suppress(KeyboardInterrupt), _server(place, announce):
        for line in jobs.lines():
            announce(line)
        announce(f"pages and on-demand runs: {place.url.removesuffix('/api')}; stop with Ctrl-C")
        parallel = jobs.settings.service.parallel
        serve_deployments(deployments(jobs.settings), parallel=parallel, alone=place.port > 0)


@contextmanager
def _server(place: Place, announce: Callable[[str], Any]) -> Iterator[None]:
    if not place.port:
        yield
        return
    announce("starting a Prefect server on loopback")
    with running(place.home, port=place.port):
        yield
