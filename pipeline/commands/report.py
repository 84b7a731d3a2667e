"""``htam report``: the HTML page of a run, of several runs, or of a memory."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="report")
@click.argument("targets", nargs=-1, required=True, metavar="RUN…|MEMORY")
@click.option("--store", default="memories", show_default=True, help="Store in which a MEMORY is looked up.")
@click.option("--learned", default="", metavar="MEMORY", help="Also show how this memory differs from the run's own.")
@click.option(
    "--work", default=".htam", show_default=True, help="Work folder of a MEMORY's build: it keeps what was quarantined."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
def command(targets: tuple[str, ...], store: str, learned: str, work: str, out: Path | None) -> None:
    """Write one self-contained HTML file: of a run, of several runs compared, or of a memory NAME[@VERSION|@TAG].

    \b
    Examples:
      htam report runs/first
      htam report runs/htam runs/feedback --out comparison.html
      htam report demo@latest --store memories
    """
    from pipeline.report import writing

    runs = writing.runs_among(targets)
    if len(runs) == 1:
        path = writing.write_run(runs[0], out, store, learned)
    elif runs:
        path = writing.write_comparison(runs, out)
    else:
        path = writing.write_memory(store, targets[0], out, work)
    click.echo(path)
