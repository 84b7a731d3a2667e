"""The settings file of ``htam serve``: what a team runs, how often, and with which budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.codec import decode
from artifacts.errors import BadInputError
from flows.notifications import Notification
from pipeline.project import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where Prefect lives.

    Attributes:
        work: folder for Prefect's database, caches and logs.
        port: of the server that is started here, 0 for a free one; ``server`` is used instead when it is not empty.
        parallel: flow runs at a time on this host.
    """

    work: str = ".htam"
    server: str = ""
    port: int = 4200
    parallel: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.parallel <= 64:
            raise ValueError(f"parallel lies in 1..64, got {self.parallel}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port lies in 0..65535, got {self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildJob:
    """Rebuild one memory when its folders hold new logs.

    Attributes:
        tag: moved to the new version unless its replay is worse.
        model: encoder, as for ``htam memory build``.
        runner, workers, address: as in :class:`flows.engine.EngineSettings`.
    """

    name: str
    logs: tuple[str, ...]
    store: str
    cron: str = ""
    every_s: float = 0.0
    tag: str = "latest"
    model: str = "all-MiniLM-L6-v2"
    runner: str = "threads"
    workers: int = 0
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeJob:
    """Tune a suite of tasks, one run a task below ``runs``.

    Attributes:
        options: of ``htam optimize``, without dashes; budgets among them are for each run.
        devices: GPU numbers of this host, each given to one run at a time; empty where others evaluate.
        timeout_s: after which a task's process is ended; two more tries resume where it stopped.
    """

    name: str
    tasks: tuple[str, ...]
    runs: str
    options: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    cron: str = ""
    every_s: float = 0.0
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferJob:
    """Run a study whenever it is asked for, or on a schedule."""

    name: str
    study: str
    cron: str = ""
    every_s: float = 0.0


Job = RebuildJob | OptimizeJob | TransferJob


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSettings:
    """Everything in one settings file."""

    service: Service = field(default_factory=Service)
    rebuild: tuple[RebuildJob, ...] = ()
    optimize: tuple[OptimizeJob, ...] = ()
    transfer: tuple[TransferJob, ...] = ()
    notify: tuple[Notification, ...] = ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs."""
        return (*self.rebuild, *self.optimize, *self.transfer)

    def __post_init__(self) -> None:
        names = [job.name for job in self.jobs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two jobs are called {repeated[0]!r}")
        for job in self.jobs:
            if job.cron and job.every_s:
                raise ValueError(f"job {job.name!r} has both cron and every_s")
            if job.every_s < 0:
                raise ValueError(f"job {job.name!r}: every_s must not be negative")
        for suite in self.optimize:
            if suite.timeout_s is not None and suite.timeout_s <= 0:
                raise ValueError(f"job {suite.name!r}: timeout_s must be positive")


def read_settings(path: Path) -> TeamSettings:
    """Read and check the form of a settings file; paths in it are relative to the working directory.

    Raises:
        BadInputError: no such file, no TOML, or a field that is missing, unknown or wrong; the message names it.
    """
    data = read_toml(path)
    try:
        return decode(TeamSettings, data)
    except BadInputError as problem:
        raise BadInputError(f"{path}: {problem.what}", problem.fix) from problem


def parameters_of(job: Job, work: str) -> tuple[str, dict[str, Any]]:
    """Name of the flow that does ``job``, and its parameters."""
    if isinstance(job, RebuildJob):
        engine = {"runner": job.runner, "workers": job.workers, "address": job.address}
        named = {"logs": list(job.logs), "store": job.store, "name": job.name, "tag": job.tag, "model": job.model}
        return "rebuild", named | {"work": work, "engine": engine}
    if isinstance(job, TransferJob):
        return "transfer", {"study": job.study}
    return "optimize", {
        "tasks": list(job.tasks),
        "runs": job.runs,
        "options": dict(job.options),
        "devices": list(job.devices),
        "timeout_s": job.timeout_s,
    }
