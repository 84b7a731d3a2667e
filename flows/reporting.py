"""The page of what a flow made, linked on the page of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task

from artifacts.errors import HtamError
from flows.command import htam
from flows.pages import log, report_link
from flows.stages import STAGE


@task(name="report", **STAGE)
def write_report(words: Sequence[str], page: str) -> None:
    """``htam report WORDS --out PAGE``; a page that cannot be written costs nobody what it would show."""
    path = Path(page)
    try:
        htam(["report", *words, "--out", page], path.with_suffix(".log"))
    except (HtamError, OSError) as problem:
        log.warning("no report: %s", problem)
    else:
        report_link(path)
