"""Flow ``transfer-study``: a study from its settings file, for deployments."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from flows.command import htam
from flows.engine import RETRY
from flows.notify import HOOKS
from flows.pages import report_link
from flows.stages import STAGE


@flow(name="transfer-study", flow_run_name="{study}", **HOOKS)
def transfer_study(study: str) -> str:
    """Run or go on with the study in the file ``study`` and return the path of its page."""
    page = run_study(study)
    report_link(Path(page))
    return page


@task(name="run-study", **STAGE, **RETRY)
def run_study(study: str) -> str:
    """``htam transfer`` in a process of its own; a study that was interrupted goes on from its results."""
    return htam(["transfer", study], Path(f"{study}.log")).strip().splitlines()[-1]
