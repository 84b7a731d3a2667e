"""One tuning run a flow run in a Prefect work pool: what the workers of GPU hosts pull, and how the suite waits for it.

All hosts see the run directories. A run says that it lives by touching a file there, because a host that is lost
cannot tell the Prefect server, which would show its flow run as running for ever.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.deployments import run_deployment
from prefect.states import Crashed

from artifacts.errors import HtamError
from flows.command import htam
from flows.engine import RETRY
from flows.notify import HOOKS
from flows.stages import STAGE
from flows.suite import SuiteEntry, optimize_words

BEAT_S = 5.0
LOST_S = 120.0
"""Longer than a network file system may show an old modification time."""


@flow(name="optimize-one", flow_run_name="{task_id}", **HOOKS)
def optimize_one(
    task_id: str, path: str, run: str, options: dict[str, str], folder: str, timeout_s: float | None = None
) -> None:
    """Run or go on with one task on the host of a worker; where it stands is left beside its run directory.

    Args:
        folder: directory that relative paths refer to.
    """
    entry = SuiteEntry(task_id=task_id, path=path, run=run)
    place = Path(folder) / run
    with _beating(place.with_name(f"{place.name}.alive")):
        out = htam(optimize_words(entry, options), Path(f"{place}.log"), timeout_s=timeout_s, folder=Path(folder))
    place.with_name(f"{place.name}.json").write_text(out, encoding="utf-8")


@task(name="optimize-elsewhere", task_run_name="{entry.task_id}", **STAGE, **RETRY)
def optimize_elsewhere(
    entry: SuiteEntry, options: Mapping[str, str], deployment: str, timeout_s: float | None, lost_s: float
) -> dict[str, Any]:
    """Ask for a run of ``deployment`` for one task and wait for it; returns where the task's run stands.

    Raises:
        ConnectionError: its host was lost, or the flow run crashed or was cancelled; a second try goes on elsewhere.
        HtamError: it failed.
    """
    parameters: dict[str, Any] = {"task_id": entry.task_id, "path": entry.path, "run": entry.run}
    parameters |= {"options": dict(options), "folder": str(Path.cwd()), "timeout_s": timeout_s}
    flow_run: Any = run_deployment(deployment, parameters=parameters, timeout=0)
    run = Path(entry.run)
    _wait(flow_run.id, run.with_name(f"{run.name}.alive"), lost_s)
    standing: dict[str, Any] = json.loads(run.with_name(f"{run.name}.json").read_text(encoding="utf-8"))
    return standing


def _wait(flow_run: UUID, alive: Path, lost_s: float) -> None:
    begun: float | None = None
    with get_client(sync_client=True) as client:
        while True:
            state = client.read_flow_run(flow_run).state
            kind = state.type if state is not None else StateType.SCHEDULED
            if kind is StateType.COMPLETED:
                return
            if kind is StateType.FAILED:
                raise HtamError(f"the run on another host failed: {state.message if state else ''}", f"see {alive}")
            if kind in (StateType.CRASHED, StateType.CANCELLED):
                raise ConnectionError(f"the run on another host ended as {kind.value.lower()}")
            if kind is StateType.RUNNING:
                begun = begun or time.monotonic()
                if time.monotonic() - begun > lost_s and _age(alive) > lost_s:
                    client.set_flow_run_state(flow_run, Crashed(message="its host was lost"), force=True)
                    raise ConnectionError("the host of the run was lost")
            time.sleep(min(BEAT_S, lost_s / 4))


def _age(alive: Path) -> float:
    """Seconds since the last sign of life, by the clock of the file system."""
    probe = alive.with_suffix(".now")
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink(missing_ok=True)
    return now - alive.stat().st_mtime if alive.exists() else float("inf")


@contextmanager
def _beating(alive: Path) -> Iterator[None]:
    """Touch ``alive`` every few seconds."""
    alive.parent.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()

    def beat() -> None:
        while True:
            alive.touch()
            if stop.wait(BEAT_S):
                return

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        alive.unlink(missing_ok=True)
