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
    news = {"flow": flow.name, "run": flow_run.name, "state": state.name or "", "message": state.message or ""}
    news["text"] = f"{flow.name} {flow_run.name}: {state.name}. {state.message or ''}".strip()
    for notice in kept():
        if names & set(notice.on):
            try:
                notice.send(news)
            except OSError as problem:
                log.warning("%s was not told of %s: %s", notice.whom, state.name, problem)


HOOKS: dict[str, Any] = {"on_completion": [tell], "on_failure": [tell], "on_crashed": [tell]}
"""Options of a flow that people may want to hear of."""
