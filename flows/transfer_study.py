"""Flow ``transfer-study``: a study from its settings file, for deployments."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from flows.engine import MAPPED
from flows.pages import link_report
from flows.supervised import htam


@flow(name="transfer-study", flow_run_name="{study}")
def transfer_study(study: str) -> str:
    """Run or resume the study in the file ``study`` and return the path of its page."""
    page = run_study(study)
    link_report(Path(page))
    return page


@task(name="run-study", **MAPPED)
def run_study(study: str) -> str:
    """``htam transfer`` in a process of its own; a study that was interrupted resumes from its results."""
    return htam(["transfer", study], Path(f"{study}.log")).strip().splitlines()[-1]
