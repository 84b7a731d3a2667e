"""One tuning run a flow run in a Prefect work pool: what the workers of GPU hosts pull, and how the suite waits for it.

All hosts see the run directories. A host that is lost cannot tell the Prefect server, which would show its flow run as
running for ever, so a file beside the run directory says that a flow run lives: the suite makes it, the flow run
touches it. When it grows old the suite deletes it, and a flow run that was only slow then knows that another has its
task.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import httpx
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateType
from prefect.deployments import run_deployment
from prefect.states import Crashed

from artifacts.errors import HtamError
from flows.command import htam
from flows.engine import RETRY
from flows.notify import HOOKS
from flows.stages import STAGE
from flows.suite import SuiteEntry, optimize_words
from optimizer.evaluation.pool.folder import file_time

BEAT_S = 5.0
LOOK_S = 1.0
LOST_S = 120.0
"""Longer than a network file system may show an old modification time."""
START_S = 600.0
"""A worker that has claimed a flow run may take this long to bring its process up."""


@flow(name="optimize-one", flow_run_name="{task_id}", **HOOKS)
def optimize_one(
    task_id: str,
    path: str,
    run: str,
    options: dict[str, str],
    folder: str,
    alive: str,
    timeout_s: float | None = None,
) -> State[Any] | None:
    """Run or go on with one task on the host of a worker; where it stands is left beside its run directory.

    Args:
        folder: directory that relative paths refer to.
        alive: file to touch for as long as this lives; once it is gone, the task is another's.

    Returns:
        A crash when something was lost that a second try may find.
    """
    entry = SuiteEntry(task_id=task_id, path=path, run=run)
    place = Path(folder) / run
    try:
        with _beating(Path(folder) / alive) as lost, _alone(place, lost):
            words = optimize_words(entry, options)
            out = htam(words, Path(f"{place}.log"), timeout_s=timeout_s, folder=Path(folder), stop=lost)
            place.with_name(f"{place.name}.json").write_text(out, encoding="utf-8")
    except (ConnectionError, TimeoutError) as problem:
        return Crashed(message=str(problem))
    return None


@task(name="optimize-elsewhere", task_run_name="{entry.task_id}", **STAGE, **RETRY)
def optimize_elsewhere(
    entry: SuiteEntry, options: Mapping[str, str], deployment: str, timeout_s: float | None, lost_s: float
) -> dict[str, Any]:
    """Ask for a run of ``deployment`` for one task and wait for it; returns where the task's run stands.

    Raises:
        ConnectionError: its host was lost, or the flow run crashed or was cancelled; a second try goes on elsewhere.
        HtamError: it failed.
    """
    run = Path(entry.run)
    alive = run.with_name(f"{run.name}.{secrets.token_hex(4)}.alive")
    parameters: dict[str, Any] = {"task_id": entry.task_id, "path": entry.path, "run": entry.run, "alive": str(alive)}
    parameters |= {"options": dict(options), "folder": str(Path.cwd()), "timeout_s": timeout_s}
    alive.parent.mkdir(parents=True, exist_ok=True)
    alive.touch()
    try:
        # Prefect's client asks again when a busy server answers late: that must not make a second run of the task.
        once = alive.name
        flow_run: Any = run_deployment(deployment, parameters=parameters, timeout=0, idempotency_key=once)
        _wait(flow_run.id, alive, lost_s)
    finally:
        alive.unlink(missing_ok=True)
    standing: dict[str, Any] = json.loads(run.with_name(f"{run.name}.json").read_text(encoding="utf-8"))
    return standing


def _wait(flow_run: UUID, alive: Path, lost_s: float) -> None:
    """Wait until the flow run has completed; while it waits for a worker, and at each new state, nothing is wrong."""
    known = StateType.SCHEDULED
    with get_client(sync_client=True) as client:
        while True:
            kind = _kind(client, flow_run, alive)
            if kind is StateType.COMPLETED:
                return
            if kind is StateType.SCHEDULED or kind not in (known, None):
                alive.touch()
            elif _age(alive) > (lost_s if known is StateType.RUNNING else max(lost_s, START_S)):
                with suppress(httpx.HTTPError):
                    client.set_flow_run_state(flow_run, Crashed(message="its host was lost"), force=True)
                raise ConnectionError("the host of the run was lost")
            known = kind or known
            time.sleep(min(BEAT_S, lost_s / 4))


def _kind(client: SyncPrefectClient, flow_run: UUID, alive: Path) -> StateType | None:
    """What the flow run is doing; None when the server does not answer, which says nothing of the run."""
    try:
        state = client.read_flow_run(flow_run).state
    except httpx.TransportError:
        return None
    except httpx.HTTPStatusError as problem:
        if problem.response.is_server_error:
            return None
        raise
    kind = state.type if state is not None else StateType.SCHEDULED
    if kind is StateType.FAILED:
        raise HtamError(f"the run on another host failed: {state.message if state else ''}", f"see {alive.parent}")
    if kind in (StateType.CRASHED, StateType.CANCELLED):
        raise ConnectionError(f"the run on another host ended as {kind.value.lower()}")
    return kind


def _age(alive: Path) -> float:
    """Seconds since the last sign of life, by the clock of the file system."""
    with suppress(FileNotFoundError):
        return file_time(alive.parent) - alive.stat().st_mtime
    return float("inf")


@contextmanager
def _beating(alive: Path) -> Iterator[threading.Event]:
    """Touch ``alive`` every few seconds; the event is set once it is gone.

    Raises:
        ConnectionError: it is gone already.
    """
    lost, done = threading.Event(), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S) and not lost.is_set():
            with suppress(OSError):  # a file system that is away for a moment
                _touch(alive, lost)

    _touch(alive, lost)
    if lost.is_set():
        raise ConnectionError("the task was given to another host")
    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


def _touch(alive: Path, lost: threading.Event) -> None:
    try:
        os.utime(alive)
    except FileNotFoundError:
        lost.set()


@contextmanager
def _alone(place: Path, lost: threading.Event) -> Iterator[None]:
    """Wait for a host that had the task before and is only slow: two must not write to one run directory.

    Raises:
        ConnectionError: the task was given to another host meanwhile.
    """
    with Path(f"{place}.log").open("ab") as file:
        while not _locked(file):
            if lost.wait(LOOK_S):
                raise ConnectionError("the task was given to another host")
        yield


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
