"""``htam tell``: give a run answers or measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import click

from artifacts.errors import BadInputError
from pipeline.commands.optimize import STORE, budget_options, resources
from pipeline.voice import counted, long_command, say


@click.command(name="tell")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--answer",
    type=click.File(encoding="utf-8", errors="replace"),
    help="One person's answer to the prompt that htam ask --print shows; - reads it from stdin.",
)
@click.option("--id", "wanted", default="", help="Which prompt it answers: its place (TASK/STEP) or its key.")
@click.option("--store", default="", help=STORE)
@click.option("--json", "as_json", is_flag=True, help="Print where the run stands as JSON.")
@budget_options
@long_command("opening the run")
def command(
    run: Path,
    files: tuple[Path, ...],
    answer: TextIO | None,
    wanted: str,
    store: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Give RUN the answers or measurements in FILES and resume it.

    Answers are OpenAI-Batch output, or lines {"custom_id": KEY, "text": ANSWER}; measurements are the worker's
    output. What is not asked for is left alone, what is known already is not taken twice.

    \b
    Examples:
      htam tell runs/b answers.jsonl measurements.jsonl
      htam tell runs/b --answer answer.md
    """
    from artifacts.runlog import RunLog
    from optimizer.run.exchange import log_received, read_received, standing, with_answer
    from optimizer.run.opening import OpenRun
    from pipeline.running import advance

    if answer is None and not files:
        raise BadInputError("nothing was told", "name files, or give one answer with --answer FILE")
    told = read_received(files)
    opened = OpenRun.at(run, store=store)
    if answer is not None:
        told = with_answer(told, standing(opened), wanted, answer.read())
    taken = log_received(opened, told)
    opened.log.close()
    say(f"taken: {counted(taken.answers, 'answer')}, {counted(taken.measurements, 'measurement')}")
    problems = [*told.problems, *(f"nobody waits for {key}" for key in taken.unknown)]
    several = len(problems) > 1  # a single one is said once, as the command's end
    for problem in problems if several else ():
        click.echo(f"not taken: {problem}", err=True)
    advance(RunLog.open(run), resources(options), store=store, as_json=as_json)
    if problems:
        what = f"{counted(len(problems), 'line')} could not be used, see above" if several else problems[0]
        raise BadInputError(what, "the rest was taken")
