"""What flows leave on Prefect's own pages: tables, links and messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from artifacts.codec import encode
from artifacts.errors import HtamError
from artifacts.memory.manifest import RankingQuality
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
        create_link_artifact(key="report", link=path.absolute().as_uri(), link_text=path.name)


def quality_table(reference: str, quality: Sequence[RankingQuality]) -> None:
    """Replay figures of a published memory."""
    rows = [encode(item) for item in quality]
    create_table_artifact(key="memory-quality", table=rows, description=f"Replay figures of {reference}")


def message(key: str, text: str) -> None:
    """One paragraph, also logged."""
    log.info(text)
    create_markdown_artifact(key=key, markdown=text)
