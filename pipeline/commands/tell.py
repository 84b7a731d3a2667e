"""``htam tell``: give a run answers or measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from artifacts.errors import BadInputError
from pipeline.commands.optimize import STORE, budget_options, resources


@click.command(name="tell")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--store", default="", help=STORE)
@click.option("--json", "as_json", is_flag=True, help="Print where the run stands as JSON.")
@budget_options
def command(run: Path, files: tuple[Path, ...], store: str, as_json: bool, **options: Any) -> None:
    """Give RUN the answers or measurements in FILES and let it go on.

    Answers are OpenAI-Batch output, or lines {"custom_id": KEY, "text": ANSWER}; measurements are the worker's
    output. What is not asked for is left alone, what is known already is not taken twice.

    \b
    Examples:
      htam tell runs/b answers.jsonl measurements.jsonl
    """
    from artifacts.runlog import RunLog
    from optimizer.run.exchange import read_told, take
    from optimizer.run.opening import OpenRun
    from pipeline.running import go_on

    told = read_told(files)
    opened = OpenRun.at(run, store=store)
    taken = take(opened, told)
    opened.log.close()
    click.echo(f"taken: {taken.answers} answers, {taken.measurements} measurements", err=True)
    problems = [*told.problems, *(f"nobody waits for {key}" for key in taken.unknown)]
    several = len(problems) > 1  # a single one is said once, as the command's end
    for problem in problems if several else ():
        click.echo(f"not taken: {problem}", err=True)
    go_on(RunLog.open(run), resources(options), store=store, as_json=as_json)
    if problems:
        what = f"{len(problems)} lines could not be used, see above" if several else problems[0]
        raise BadInputError(what, "the rest was taken")
