"""``htam ask``: what a run waits for, as files."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pipeline.commands.optimize import STORE
from pipeline.voice import counted, long_command, say


@click.command(name="ask")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--requests", type=click.Path(path_type=Path), help="Write open LLM requests here (OpenAI-Batch JSONL).")
@click.option("--jobs", type=click.Path(path_type=Path), help="Write open evaluation jobs here (JSONL).")
@click.option("--print", "show", is_flag=True, help="Print one open prompt, for a person who answers it.")
@click.option("--id", "wanted", default="", help="Which: its place (TASK/STEP) or the beginning of its key.")
@click.option("--store", default="", help=STORE)
@long_command("opening the run")
def command(run: Path, requests: Path | None, jobs: Path | None, show: bool, wanted: str, store: str) -> None:
    """Write the open LLM requests and evaluation jobs of RUN as files; without options, count them.

    With --print, one prompt goes to stdout; htam tell RUN --answer takes the answer, as any text with one code block.

    \b
    Examples:
      htam ask runs/b --print
      htam ask runs/b --requests requests.jsonl --jobs jobs.jsonl
      python -m optimizer.evaluation.worker jobs.jsonl --out measurements.jsonl   # on the GPU host
    """
    from optimizer.llm.files import write_requests
    from optimizer.run.exchange import open_request, standing, write_jobs
    from optimizer.run.opening import OpenRun

    opened = OpenRun.at(run, store=store)
    found = standing(opened)
    opened.log.close()
    if show or wanted:
        place, request = open_request(found, wanted)
        click.echo("\n\n".join(message.content.strip() for message in request.messages))
        answer = f"htam tell {shlex.quote(str(run))} --answer FILE --id {shlex.quote(place)}"
        say(f"[{place}, key {request.key[:12]}; answer with: {answer}]")
    if requests is not None:
        written = write_requests(requests, found.open_requests.values())
        click.echo(f"{counted(written, 'request')} written to {requests}")
    if jobs is not None:
        click.echo(f"{counted(write_jobs(jobs, found.open_jobs.values()), 'job')} written to {jobs}")
    if requests is None and jobs is None and not show and not wanted:
        waiting = counted(len(found.open_requests), "LLM request"), counted(len(found.open_jobs), "evaluation job")
        click.echo(f"open: {waiting[0]} and {waiting[1]}")
