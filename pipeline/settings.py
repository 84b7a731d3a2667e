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
class _Scheduled:
    """What every job says; with neither ``cron`` nor ``every_s`` it runs on demand."""

    name: str
    cron: str = ""
    every_s: float = 0.0

    def __post_init__(self) -> None:
        if self.cron and self.every_s:
            raise ValueError(f"job {self.name!r} has both cron and every_s")
        if self.every_s < 0:
            raise ValueError(f"job {self.name!r}: every_s must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildJob(_Scheduled):
    """Rebuild one memory when its folders hold new logs.

    Attributes:
        tag: moved to the new version unless its replay is worse.
        model: encoder, as for ``htam memory build``.
        runner, workers, address: as in :class:`flows.engine.EngineSettings`.
    """

    flow = "rebuild"
    logs: tuple[str, ...]
    store: str
    tag: str = "latest"
    model: str = "all-MiniLM-L6-v2"
    runner: str = "threads"
    workers: int = 0
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeJob(_Scheduled):
    """Tune a suite of tasks, one run a task below ``runs``.

    Attributes:
        options: of ``htam optimize``, without dashes; budgets among them are for each run.
        devices: GPU numbers of this host, each given to one run at a time; empty where others evaluate.
        timeout_s: after which a task's process is ended; two more tries resume where it stopped.
    """

    flow = "optimize"
    tasks: tuple[str, ...]
    runs: str
    options: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        _Scheduled.__post_init__(self)
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"job {self.name!r}: timeout_s must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferJob(_Scheduled):
    """Run a study whenever it is asked for, or on a schedule."""

    flow = "transfer"
    study: str


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


def deployment(job: Job, work: str) -> dict[str, Any]:
    """The job as :func:`flows.deployments.deployment` takes it."""
    parameters: dict[str, Any]
    if isinstance(job, RebuildJob):
        engine = {"runner": job.runner, "workers": job.workers, "address": job.address}
        parameters = {"logs": list(job.logs), "store": job.store, "name": job.name, "tag": job.tag, "model": job.model}
        parameters |= {"work": work, "engine": engine}
    elif isinstance(job, OptimizeJob):
        parameters = {"tasks": list(job.tasks), "runs": job.runs, "options": dict(job.options)}
        parameters |= {"devices": list(job.devices), "timeout_s": job.timeout_s}
    else:
        parameters = {"study": job.study}
    return {"name": job.name, "flow": job.flow, "parameters": parameters, "cron": job.cron, "every_s": job.every_s}
