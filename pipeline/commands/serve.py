"""``htam serve``: serve the deployments of one settings file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="serve")
@click.argument("settings", type=click.Path(path_type=Path), metavar="SETTINGS.toml")
@click.option(
    "--check", is_flag=True, help="Only say whether every job could run here; exit code 1 when one could not."
)
def command(settings: Path, check: bool) -> None:
    """Serve what SETTINGS.toml schedules until interrupted: rebuilds, tuning jobs, studies.

    Starts a Prefect server on loopback unless the file names one; its pages show every run with tables and links.

    \b
    Examples:
      htam serve examples/team/team.toml --check
      htam serve team.toml
    """
    from pipeline.serving import checked, placed, serve

    if check:
        for line in checked(settings).lines():
            click.echo(line)
        return
    place = placed(settings)
    serve(checked(settings), place, announce=click.echo)
