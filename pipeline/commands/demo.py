"""``htam demo``: the main job once, on what the project ships."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.voice import long_command


@click.command(name="demo")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=".demo",
    show_default=True,
    help="Folder that is made anew.",
)
@long_command("preparing")
def command(home: Path) -> None:
    """Do the main job once on what the project ships, in a few minutes on two cores.

    Optimizes shipped tasks on the CPU with the shipped memory (the model's answers come from a recording; builds,
    checks and timings are made here), builds a memory of the new run's log, writes one HTML report and says what the
    memory did.

    \b
    Examples:
      htam demo
      htam demo --home .demo
    """
    from pipeline.demo import play

    click.echo(play(home).absolute())
