"""``htam export``: what a run or logs hold, in the forms that other projects read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from artifacts.errors import BadInputError
from pipeline.voice import counted


@click.group(name="export")
def command() -> None:
    """Write verified kernels as packages of other projects, or logs as training data."""


_OUT = click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="New folder to write into."
)


@command.command(name="hf-kernels", short_help="A package for the Hugging Face Kernel Hub.")
@click.argument("run", type=click.Path(path_type=Path))
@_OUT
@click.option("--name", default="", help="Name of the kernel; that of the folder without it.")
@click.option(
    "--license", "license_id", default="other", show_default=True, metavar="SPDX", help="Licence of the kernels."
)
def hf_kernels(run: Path, out: Path, name: str, license_id: str) -> None:
    """Write the confirmed winners of RUN as a package that `kernels` loads and kernel-builder builds.

    \b
    Examples:
      htam export hf-kernels runs/first --out row-kernels --license apache-2.0
    """
    from pipeline.export.hf_kernels import write_package
    from pipeline.export.winners import confirmed_winners

    winners = confirmed_winners(run)
    files = write_package(winners, out, name, license_id)
    _say(f"{counted(len(winners.kernels), 'kernel')}, {counted(len(files), 'file')} in {out}", winners.left_out)


@command.command(name="flashinfer", short_help="Definitions and solutions of flashinfer-bench.")
@click.argument("run", type=click.Path(path_type=Path))
@_OUT
def flashinfer(run: Path, out: Path) -> None:
    """Write the confirmed winners of RUN as definitions and solutions that flashinfer-bench reads.

    \b
    Examples:
      htam export flashinfer runs/first --out trace-set
    """
    from pipeline.export.flashinfer import write_solutions
    from pipeline.export.winners import confirmed_winners

    files, left_out = write_solutions(confirmed_winners(run), out)
    if not files:
        raise BadInputError(f"no task of {run} has a definition: {_reasons(left_out)}", "export hf-kernels takes any")
    _say(f"{counted(len(files) // 2, 'definition')} with a solution each in {out}", left_out)


_LOGS = click.option(
    "--logs", multiple=True, required=True, type=click.Path(path_type=Path), help="File or folder of logs; repeatable."
)
_FILE = click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file to write."
)
_LICENSE = click.option(
    "--license", "license_id", default="unknown", show_default=True, metavar="SPDX", help="Licence of the logs."
)
_TRUST = click.option(
    "--min-trust",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Least trust of a step that is right; factors of the flags are in docs/reference/logs.md.",
)


def _training(kind: str, logs: tuple[Path, ...], out: Path, license_id: str, min_trust: float) -> None:
    from pipeline.export.training import export_rows, write_rows

    rows, left_out = export_rows(kind, logs, license_id=license_id, min_trust=min_trust)
    if not rows:
        raise BadInputError(f"the logs give no row: {_counted(left_out) or 'they hold no step'}", "add logs")
    write_rows(rows, out)
    sides, prompts = Counter(row["split"] for row in rows), Counter(row["prompt_from"] for row in rows)
    click.echo(f"{counted(len(rows), 'row')} in {out}: {_counted(sides)}; prompts: {_counted(prompts)}")
    if left_out:
        click.echo(f"left out: {_counted(left_out)}", err=True)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


@command.command(name="sft", short_help="Conversations that end in a good kernel.")
@_LOGS
@_FILE
@_LICENSE
@_TRUST
def sft(logs: tuple[Path, ...], out: Path, license_id: str, min_trust: float) -> None:
    """Write conversations whose answer is right and not slower than what it started from.

    \b
    Examples:
      htam export sft --logs runs --out sft.jsonl --license mit
    """
    _training("sft", logs, out, license_id, min_trust)


@command.command(name="rl", short_help="Prompts and answers with rewards.")
@_LOGS
@_FILE
@_LICENSE
@_TRUST
def rl(logs: tuple[Path, ...], out: Path, license_id: str, min_trust: float) -> None:
    """Write prompts and answers with their reward: log2 of the speedup over the baseline, -5 for a failure.

    \b
    Examples:
      htam export rl --logs runs --logs archive --out rl.jsonl
    """
    _training("rl", logs, out, license_id, min_trust)


@command.command(name="preferences", short_help="Pairs of answers to one prompt.")
@_LOGS
@_FILE
@_LICENSE
@_TRUST
def preferences(logs: tuple[Path, ...], out: Path, license_id: str, min_trust: float) -> None:
    """Write for each parent its best answer against those that failed or are surely slower.

    \b
    Examples:
      htam export preferences --logs runs --out pairs.jsonl
    """
    _training("preferences", logs, out, license_id, min_trust)


def _say(done: str, left_out: Mapping[str, str]) -> None:
    click.echo(done)
    for task, why in left_out.items():
        click.echo(f"left out {task}: {why}", err=True)


def _reasons(left_out: Mapping[str, str]) -> str:
    return "; ".join(f"{task}: {why}" for task, why in left_out.items())
