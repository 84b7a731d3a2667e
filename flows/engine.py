"""Where mapped tasks run: threads of this process, worker processes, or a Dask cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Flow, Task, flow, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from artifacts.errors import HtamError, UnavailableError
from flows.server import embedded_server

T = TypeVar("T")

log = logging.getLogger("htam")
"""Progress for people: on a command line through its handler, on a server as lines of the flow run."""


UPDATES = 50
"""Updates of a progress bar a map makes at most, roughly: each is a call to the server."""

RUNNERS = ("threads", "processes", "dask")
"""Names of the task runners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Which task runner carries the mapped tasks.

    Attributes:
        runner: one of :data:`RUNNERS`; ``dask`` needs the extra of that name.
        workers: parallel tasks here, or worker processes of a local cluster; 0 means one a core.
        address: of an existing Dask scheduler; empty starts a local cluster.
    """

    runner: str = "threads"
    workers: int = 0
    address: str = ""

    def __post_init__(self) -> None:
        if self.runner not in RUNNERS:
            raise ValueError(f"unknown runner {self.runner!r}, one of {', '.join(RUNNERS)}")
        if self.workers < 0:
            raise ValueError(f"workers must not be negative, got {self.workers}")

    @property
    def parallel(self) -> int:
        """Tasks that run at the same time."""
        return self.workers or os.cpu_count() or 1


class _UninterruptedWorkers:
    """A task runner whose threads and processes never hear Ctrl-C; goes before one of Prefect's among the bases.

    A terminal sends it to every process of its group, and each worker would answer with a traceback of its own. They
    leave it to the process that started them, which ends them. What is blocked in a thread is blocked in all threads
    and processes that it starts.
    """

    def __enter__(self) -> Any:
        """Start the runner."""
        with _interrupts_blocked():
            return super().__enter__()  # type: ignore[misc] # of the other base

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a task; the first ones start workers."""
        with _interrupts_blocked():
            return super().submit(*args, **kwargs)  # type: ignore[misc] # of the other base


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let Ctrl-C wait in this thread, and never come in those that it starts."""
    resource_tracker.ensure_running()  # it would unblock the signal when it starts later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Processes(_UninterruptedWorkers, ProcessPoolTaskRunner):
    """Worker processes of this host."""


def task_runner(settings: EngineSettings) -> TaskRunner[Any]:
    """Build the task runner that ``settings`` name.

    Raises:
        UnavailableError: the package behind the runner is not installed.
    """
    if settings.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=settings.parallel)
    if settings.runner == "processes":
        return _Processes(max_workers=settings.parallel)
    return _cluster(settings)


def _cluster(settings: EngineSettings) -> TaskRunner[Any]:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as missing:
        raise UnavailableError("runner dask needs prefect_dask", "pip install 'htam-kernels[dask]'") from missing

    class Cluster(_UninterruptedWorkers, DaskTaskRunner):
        """A Dask cluster."""

    # Dask serves its status page whatever is asked; without a port of its own two clusters of one host want the same.
    local = {"n_workers": settings.parallel, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    local |= {"silence_logs": logging.CRITICAL}
    # What goes wrong in a task comes back as its result; Dask's own logs tell of each connection that comes and goes.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return Cluster(address=settings.address or None, cluster_kwargs=None if settings.address else local)


def run(flow: Flow[..., Any], settings: EngineSettings, *args: Any, **parameters: Any) -> Any:
    """Run ``flow`` here with the task runner of ``settings`` and return its result.

    The heartbeat of a flow run is a thread that costs a second to join, so it is off for runs that
    their caller waits for.
    """
    changed: dict[Any, Any] = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    if not PREFECT_API_URL.value():
        server = embedded_server()
        if settings.runner != "threads":  # else each worker process starts a server of its own and leaves it behind
            server.start()
            changed[PREFECT_API_URL] = server.api_url
    with temporary_settings(changed), _no_child_left():
        return flow.with_options(task_runner=task_runner(settings))(*args, **parameters)


@contextmanager
def _no_child_left() -> Iterator[None]:
    """End worker processes on Ctrl-C: those of a pool take it for the failure of a task and wait for the next one."""
    try:
        yield
    except KeyboardInterrupt:
        for child in multiprocessing.active_children():
            child.terminate()
        raise


LOST = (ConnectionError, TimeoutError, InterruptedError, BlockingIOError, httpx.TransportError)
"""What may be there again on a second try; the last one is how a Prefect server that is away looks."""


def is_infrastructure(error: BaseException) -> bool:
    """True for errors that may vanish on a second try: input and output, connections, lost workers.

    A user's mistake and a bug give the same result every time and are not retried.
    """
    if isinstance(error, HtamError):
        return isinstance(error.__cause__, (ConnectionError, TimeoutError))
    lost_worker = type(error).__name__ in ("KilledWorker", "BrokenProcessPool", "CommClosedError", "WorkerCrashedError")
    return lost_worker or isinstance(error, LOST)


async def retry_on_infrastructure(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Say to Prefect whether a failed task may be tried again."""
    error = await state.aresult(raise_on_failure=False) if hasattr(state, "aresult") else state.data
    return isinstance(error, BaseException) and is_infrastructure(error)


RETRY: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [1.0, 5.0],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": retry_on_infrastructure,
}
"""Options of a task that touches disks, networks or workers."""

STAGE: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""Options of every task: nothing large is kept by Prefect."""
MAPPED: dict[str, Any] = {**STAGE, **RETRY}


def followed(futures: Sequence[PrefectFuture[Any]], what: str, *, raising: bool = True) -> list[Any]:
    """Results of mapped tasks in their order, with a progress bar on the page of the run.

    Args:
        raising: False leaves the exception of a failed task among the results.
    """
    if not futures:
        return []
    bar = cast(UUID, create_progress_artifact(progress=0.0, description=f"{len(futures)} {what}"))
    every_so_many = max(1, len(futures) // UPDATES)
    results = []
    for done, future in enumerate(futures, 1):
        results.append(future.result(raise_on_failure=raising))
        if done % every_so_many == 0 or done == len(futures):
            log.info("%d of %d %s", done, len(futures), what)
            update_progress_artifact(bar, progress=100.0 * done / len(futures))
    return results


def mapped(
    name: str, work: Callable[[str], T], keys: Sequence[str], settings: EngineSettings
) -> dict[str, T | Exception]:
    """``work`` of every key, several at a time; an exception is the result of its key and stops no other."""

    @task(name=name, task_run_name="{key}", **MAPPED)
    def one(key: str) -> T:
        return work(key)

    @flow(name=name)
    def every(keys: Sequence[str]) -> dict[str, Any]:
        futures = one.map(keys)
        return dict(zip(keys, followed(futures, "cells", raising=False), strict=True))

    found: dict[str, T | Exception] = run(every, settings, list(keys)) if keys else {}
    return found
