"""``htam demo``: the main job on what the project ships, as the command lines a user would type."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from artifacts.errors import BadInputError

EXAMPLES = Path(__file__).parents[1] / "examples"
LOGS = EXAMPLES / "logs"
CASSETTE = EXAMPLES / "cassettes" / "demo.jsonl"
TASKS = ("row_softmax", "rms_norm", "bias_gelu_residual")
STEPS = 3
NAME = "demo"
MARK = ".made-by-htam-demo"
"""File in the folder of a demo, without which nothing is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One command line with what it is for."""

    title: str
    words: tuple[str, ...] = field(default=())

    @property
    def line(self) -> str:
        """As a user would type it."""
        return shlex.join(["htam", *self.words])


def parts(home: Path) -> Iterator[Part]:
    """The demo in order; ``home`` receives everything it makes."""
    store, run, page = str(home / "memories"), str(home / "run"), str(home / "report.html")
    tasks = [str(EXAMPLES / "tasks" / "cpu" / f"{task}.py") for task in TASKS]
    build = ("memory", "build", "--store", store, "--work", str(home / "work"), "--name", NAME, "--logs", str(LOGS))
    replayed = ("--llm", f"replay:{CASSETTE}", "--steps", str(STEPS), "--fixed-steps", "--seed", "0")
    yield Part(title="build a memory from the logs that the project ships", words=build)
    yield Part(
        title=f"optimize {len(TASKS)} operators on the CPU: recorded answers, real builds, checks and timings",
        words=("optimize", *tasks, "--memory", NAME, "--store", store, "--backend", "cpu", *replayed, "--run", run),
    )
    yield Part(
        title="build the memory again, with the new run's log",
        words=(*build, "--logs", run, "--tag", "rebuilt", "--force"),
    )
    yield Part(
        title="see what the run taught it",
        words=("memory", "diff", f"{NAME}@latest", f"{NAME}@rebuilt", "--store", store),
    )
    yield Part(
        title="write the report",
        words=("report", run, "--store", store, "--learned", f"{NAME}@rebuilt", "--out", page),
    )


def _make_anew(home: Path) -> None:
    """Empty the folder of an earlier demo; anybody else's is left alone.

    Raises:
        BadInputError: ``home`` holds something, and no demo made it.
    """
    if home.exists() and not (home / MARK).is_file() and any(home.iterdir()):
        raise BadInputError(f"{home} holds what no demo made", "remove it, or name a new folder with --home")
    if home.exists():
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / MARK).touch()


def play(home: Path) -> Path:
    """Run every part, showing its command line, and return the path of the report.

    Raises:
        BadInputError: the examples are not here (the demo needs a checkout), or ``home`` is somebody else's.
        HtamError: whatever a part says.
    """
    from pipeline.cli import cli

    for needed in (LOGS, CASSETTE):
        if not needed.exists():
            raise BadInputError(f"{needed} is missing", "run the demo in a checkout of the project")
    _make_anew(home)
    begin = time.monotonic()
    for number, part in enumerate(parts(home), 1):
        click.secho(f"\n[{number}] {part.title}", bold=True)
        click.secho(f"$ {part.line}", dim=True)
        start = time.monotonic()
        cli.main(list(part.words), standalone_mode=False)
        click.secho(f"({time.monotonic() - start:.0f} s)", dim=True)
    click.secho(f"\ndone in {time.monotonic() - begin:.0f} s; open the report:", bold=True)
    return home / "report.html"
