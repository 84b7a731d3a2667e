"""``htam ask``: what a run waits for, as files."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.commands.optimize import STORE


@click.command(name="ask")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--requests", type=click.Path(path_type=Path), help="Write open LLM requests here (OpenAI-Batch JSONL).")
@click.option("--jobs", type=click.Path(path_type=Path), help="Write open evaluation jobs here (JSONL).")
@click.option("--store", default="", help=STORE)
def command(run: Path, requests: Path | None, jobs: Path | None, store: str) -> None:
    """Write the open LLM requests and evaluation jobs of RUN as files; without options, count them.

    \b
    Examples:
      htam ask runs/b --requests requests.jsonl --jobs jobs.jsonl
      python -m optimizer.evaluation.worker jobs.jsonl --out measurements.jsonl   # on the GPU host
    """
    from optimizer.llm.batch_file import write_requests
    from optimizer.run.exchange import standing, write_jobs
    from optimizer.run.opening import OpenRun

    opened = OpenRun.at(run, store=store)
    found = standing(opened)
    opened.log.close()
    if requests is not None:
        click.echo(f"{write_requests(requests, found.open_requests.values())} requests written to {requests}")
    if jobs is not None:
        click.echo(f"{write_jobs(jobs, found.open_jobs.values())} jobs written to {jobs}")
    if requests is None and jobs is None:
        click.echo(f"{len(found.open_requests)} LLM requests and {len(found.open_jobs)} evaluation jobs are open")
