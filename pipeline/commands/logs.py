"""``htam logs``: look into trajectory logs before mining them, and pack runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from pipeline.voice import counted


@click.group(name="logs")
def command() -> None:
    """Look into trajectory logs before mining them, and pack runs."""


@command.command(name="formats")
def formats() -> None:
    """List the formats that can be read.

    \b
    Examples:
      htam logs formats
    """
    from builder.read.reading import IMPORTERS

    width = max(len(importer.name) for importer in IMPORTERS)
    for importer in IMPORTERS:
        click.echo(f"{importer.name:<{width}}  {importer.summary}")


@command.command(name="inspect", short_help="Say what a heap of logs holds.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@click.option("--all", "show_all", is_flag=True, help="List every quarantined record and ignored file.")
def inspect(paths: tuple[Path, ...], as_json: bool, show_all: bool) -> None:
    """Say what the logs under PATH hold: formats, tasks, steps, transitions, what cannot be read and why.

    \b
    Examples:
      htam logs inspect runs/
      htam logs inspect runs/ results.jsonl --json
    """
    from builder.read.inspection import inspect_logs

    report = inspect_logs(paths)
    if as_json:
        click.echo(json.dumps(report, indent=1, ensure_ascii=False))
    else:
        _print(report, show_all)


@command.command(name="check", short_help="Say line by line what a file of plain steps lacks.")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Read FILE as plain steps (docs/reference/logs.md) and say line by line what is missing.

    Ends with 1 when a line cannot be mined at all.

    \b
    Examples:
      htam logs check steps.jsonl
    """
    from builder.read.inspection import check_steps

    figures, remarks = check_steps(file)
    for remark in remarks:
        click.echo(f"{file}:{remark.line or '-'}: {'not read: ' if remark.lost else ''}{remark.text}")
    click.echo(
        f"{counted(figures.records, 'line')}: {counted(figures.steps, 'step')} of {counted(figures.tasks, 'task')}, "
        f"{figures.edges} with a parent, {figures.measured} of them measured; "
        f"{counted(figures.quarantined, 'line')} not read"
    )
    if figures.quarantined:
        raise SystemExit(1)


@command.command(name="pack", short_help="Keep runs that are over in a few compressed files.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
def pack(runs: tuple[Path, ...]) -> None:
    """Compress the events of each RUN into one file and its candidates into another.

    Everything reads a packed run; to be written to again it is unpacked first.

    \b
    Examples:
      htam logs pack runs/*
    """
    from artifacts.runlog import RunLog

    for run in runs:
        RunLog.open(run).pack()
        click.echo(f"packed: {run}")


@command.command(name="unpack", short_help="Undo htam logs pack.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
def unpack(runs: tuple[Path, ...]) -> None:
    """Give each RUN its plain events and candidates back, so that it can be resumed.

    \b
    Examples:
      htam logs unpack runs/softmax
    """
    from artifacts.runlog import RunLog

    for run in runs:
        RunLog.open(run).unpack()
        click.echo(f"unpacked: {run}")


def _print(report: Mapping[str, Any], show_all: bool) -> None:
    columns = ("files", "tasks", "records", "steps", "measured", "gains", "losses", "fixes", "failures", "quarantined")
    rows = [*report["formats"].items(), ("total", report["total"])]
    width = max(len(name) for name, _ in rows)
    widths = [max(len(column), len(f"{report['total'][column]:,}")) + 2 for column in columns]
    click.echo(" " * width + "".join(f"{name:>{wide}}" for name, wide in zip(columns, widths, strict=True)))
    for name, figures in rows:
        cells = (f"{figures[column]:>{wide},}" for column, wide in zip(columns, widths, strict=True))
        click.echo(f"{name:<{width}}" + "".join(cells))
    for title in ("outcomes", "flags", "devices"):
        counted = ", ".join(f"{name} {count:,}" for name, count in report["total"][title].items())
        click.echo(f"\n{title}: {counted or 'none'}")
    _print_quarantine(report, show_all)


def _print_quarantine(report: Mapping[str, Any], show_all: bool) -> None:
    if report["quarantined"]:
        click.echo("\nquarantined:")
        for reason, count in report["total"]["reasons"].items():
            click.echo(f"  {count:>6,}  {reason}")
    if report["ignored"]:
        files = "1 other file" if len(report["ignored"]) == 1 else f"{len(report['ignored']):,} other files"
        click.echo(f"\n{files} ignored" + ("" if show_all else " (--all lists them)"))
    if show_all:
        for entry in report["quarantined"]:
            click.echo(f"  {entry['file']}:{entry['line'] or '-'}: {entry['reason']}")
        for entry in report["ignored"]:
            click.echo(f"  {entry['file']}: {entry['reason']}")
