"""Deployments: a flow with its parameters and its schedule, served by one process on one host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import prefect
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists
from prefect.types.entrypoint import EntrypointType

from flows.build_memory import build_memory, rebuild_on_new_logs
from flows.elsewhere import optimize_one
from flows.optimize_suite import optimize_suite
from flows.transfer_study import transfer_study

FLOWS: Mapping[str, Flow[..., Any]] = {
    "build": build_memory,
    "rebuild": rebuild_on_new_logs,
    "optimize": optimize_suite,
    "optimize-one": optimize_one,
    "transfer": transfer_study,
}
"""Flows that a settings file may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One flow to serve.

    Attributes:
        flow: key of :data:`FLOWS`.
        work_pool: whose workers run it; empty for this process.
        cron: five fields, in UTC; ``every_s``: seconds between runs. Both empty: on demand only.
    """

    name: str
    flow: str
    parameters: Mapping[str, Any]
    cron: str = ""
    every_s: float = 0.0
    work_pool: str = ""
    tags: tuple[str, ...] = ()


def deployment(item: Deployment) -> RunnerDeployment:
    """Prefect's form of ``item``; the flow is found by its module path, so nothing is defined twice."""
    made: RunnerDeployment = FLOWS[item.flow].to_deployment(  # type: ignore[assignment]
        name=item.name,
        parameters=dict(item.parameters),
        cron=item.cron or None,
        interval=timedelta(seconds=item.every_s) if item.every_s else None,
        work_pool_name=item.work_pool or None,
        tags=["htam", *item.tags],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return made


def serve(items: Sequence[Deployment], *, parallel: int) -> None:
    """Serve until interrupted, at most ``parallel`` flow runs at a time; work pools are left to their workers."""
    for item in items:
        if item.work_pool:
            hand_over(item)
    here = [deployment(item) for item in items if not item.work_pool]
    prefect.serve(*here, limit=parallel, print_starting_message=False)


def hand_over(item: Deployment) -> None:
    """Make ``item`` known to the workers of its pool, which is made when it is not there."""
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=item.work_pool, type="process"))
    deployment(item).apply()
