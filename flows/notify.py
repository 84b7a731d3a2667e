"""State hooks of every flow: tell whom the settings name what became of a run."""

from __future__ import annotations

from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State

from flows.notice import kept
from flows.pages import log


def tell(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Tell everybody who wants to know of ``state``; who cannot be reached is named in the run's log."""
    names = {state.type.value.lower(), (state.name or "").lower()}
    run = _name(flow, flow_run)
    news = {"flow": flow.name, "run": run, "state": state.name or "", "message": state.message or ""}
    news["text"] = f"{flow.name} {run}: {state.name}. {state.message or ''}".strip()
    for notice in kept():
        if names & set(notice.on):
            try:
                notice.send(news)
            except OSError as problem:
                log.warning("%s was not told of %s: %s", notice.whom, state.name, problem)


def _name(flow: Flow[..., Any], flow_run: FlowRun) -> str:
    """The run's own name: who reports a crash still has the one that Prefect drew before the run began."""
    template = flow.flow_run_name
    try:
        return template.format(**flow_run.parameters) if isinstance(template, str) else flow_run.name
    except KeyError:
        return flow_run.name


HOOKS: dict[str, Any] = {"on_completion": [tell], "on_failure": [tell], "on_crashed": [tell]}
"""Options of a flow that people may want to hear of."""
