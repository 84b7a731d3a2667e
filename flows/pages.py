"""Reports of flows, as links on Prefect's own pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact

from artifacts.errors import HtamError
from flows.engine import STAGE, log
from flows.supervised import htam


@task(name="report", **STAGE)
def write_report(words: Sequence[str], page: str) -> None:
    """``htam report WORDS --out PAGE``; a page that cannot be written costs nobody what it would show."""
    path = Path(page)
    try:
        htam(["report", *words, "--out", page], path.with_suffix(".log"))
    except (HtamError, OSError) as problem:
        log.warning("no report: %s", problem)
    else:
        link_report(path)


def link_report(path: Path) -> None:
    """A link to a page on the page of the run."""
    create_link_artifact(key="report", link=path.absolute().as_uri(), link_text=path.name)
