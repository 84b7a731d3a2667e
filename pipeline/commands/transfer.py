"""``htam transfer``: run a transfer study."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pipeline.voice import counted


@click.command(name="transfer")
@click.argument("study", type=click.Path(path_type=Path), metavar="STUDY.toml")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Cells at a time.")
@click.option("--work", default=".htam", show_default=True, help="Folder for Prefect's database.")
@click.option(
    "--tell",
    "answers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="First give the runs the answers or measurements in this file; may be repeated.",
)
@click.option(
    "--ask",
    "folder",
    type=click.Path(path_type=Path),
    help="Write what the runs then wait for to requests.jsonl and jobs.jsonl in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def command(
    study: Path, workers: int, work: str, answers: tuple[Path, ...], folder: Path | None, as_json: bool
) -> None:
    """Run or resume the study in STUDY.toml: memories on targets, without leakage, with paired statistics.

    Prints the path of the matrix page last; exit code 1 when a cell failed. Runs whose answers or measurements come
    through files resume with --tell.

    \b
    Examples:
      htam transfer examples/studies/sources.toml
      htam transfer examples/studies/sources.toml --workers 2 --json
      htam transfer examples/studies/cpu-cuda.toml --tell answers.jsonl --ask open
    """
    from flows import keep_home_in
    from pipeline.building import progress

    keep_home_in(Path(work) / "prefect")
    with progress():
        from pipeline.study import studying

        if answers:
            taken = studying.tell(study, answers)
            counts = f"{counted(taken.requests, 'answer')}, {counted(taken.jobs, 'measurement')}"
            click.echo("\n".join([f"taken: {counts}", *taken.problems]), err=True)
        result = studying.run_study(study, workers=workers)
        if folder is not None:
            asked = studying.ask(study, folder)
            counts = f"{counted(asked.requests, 'request')} and {counted(asked.jobs, 'job')}"
            click.echo(f"{counts} written to {folder}", err=True)
    if result.waiting:
        click.echo(
            f"{counted(len(result.waiting), 'run')} without all answers and measurements; see --ask and --tell",
            err=True,
        )
    click.echo(json.dumps(result.json(), indent=1) if as_json else result.page)
    if result.failed:
        from artifacts.errors import HtamError

        raise HtamError(
            f"{len(result.failed)} cells failed, first {result.failed[0][0]}: {result.failed[0][1]}", "see the page"
        )
