"""Deployments: a flow with its parameters and its schedule, known to Prefect's server and run on one host.

``python -m flows.deployments`` serves what :func:`flows.server.serve` writes to its standard input.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import prefect
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.deployments.runner import RunnerDeployment
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType

from flows.build_memory import rebuild_on_new_logs
from flows.notifications import Notification, install
from flows.optimize_suite import optimize_suite
from flows.transfer_study import transfer_study

FLOWS: Mapping[str, Flow[..., Any]] = {
    "rebuild": rebuild_on_new_logs,
    "optimize": optimize_suite,
    "transfer": transfer_study,
}
"""Flows that a settings file may name."""


def deployment(
    name: str, flow: str, parameters: dict[str, Any], cron: str = "", every_s: float = 0.0
) -> RunnerDeployment:
    """A deployment whose flow is found by its module path, so nothing is defined twice.

    Args:
        flow: key of :data:`FLOWS`.
        cron: five fields, in UTC; ``every_s``: seconds between runs. Both empty: on demand only.
    """
    made: RunnerDeployment = FLOWS[flow].to_deployment(  # type: ignore[assignment]
        name=name,
        parameters=parameters,
        cron=cron or None,
        interval=timedelta(seconds=every_s) if every_s else None,
        tags=["htam", flow],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return made


def settle_lost(names: Sequence[str]) -> int:
    """Set what an earlier service of the deployments ``names`` left unfinished to crashed, and return how many runs."""
    unfinished = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING]))
    page: dict[str, Any] = {"sort": FlowRunSort.START_TIME_DESC, "limit": 200}  # the server wants both
    with get_client(sync_client=True) as client:
        ours = DeploymentFilter(name=DeploymentFilterName(any_=list(names)))
        lost = client.read_flow_runs(deployment_filter=ours, flow_run_filter=FlowRunFilter(state=unfinished), **page)
        parents = FlowRunFilterParentFlowRunId(any_=[run.id for run in lost])
        children = FlowRunFilter(state=unfinished, parent_flow_run_id=parents)
        lost += client.read_flow_runs(flow_run_filter=children, **page)
        for run in lost:
            client.set_flow_run_state(run.id, Crashed(message="htam serve was ended"), force=True)
    return len(lost)


def main() -> None:
    """Serve until SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    order = json.load(sys.stdin)
    jobs = [item["name"] for item in order["items"]]
    if order["alone"]:
        settle_lost(jobs)
    install([Notification(**item) for item in order["notifications"]], jobs)
    served = [deployment(**item) for item in order["items"]]
    prefect.serve(*served, limit=order["parallel"], print_starting_message=False)


if __name__ == "__main__":
    main()
