"""``htam demo``: the main job once on what the project ships, as the command lines a user would type."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from artifacts.errors import BadInputError
from pipeline.voice import long_command

if TYPE_CHECKING:
    from artifacts.memory.htg import Memory
    from artifacts.run_events import LoggedStep

SHIPPED_WITH = (Path(__file__).parents[1] / "examples", Path(__file__).parents[2] / "examples")
"""Where the examples are: in a wheel, in a checkout."""
EXAMPLES = next((folder for folder in SHIPPED_WITH if folder.is_dir()), SHIPPED_WITH[0])
CASSETTE = EXAMPLES / "cassettes" / "demo.jsonl"
TASKS = ("swiglu", "matmul_bias_relu_rowsum", "max_pool_2d")
STEPS = 3
NAME = "demo"
MARK = ".made-by-htam-demo"
"""File in the folder of a demo, without which nothing is removed."""


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
    click.echo(play(home).absolute())


class Part(NamedTuple):
    """One command line with what it is for."""

    title: str
    words: tuple[str, ...]


def parts(home: Path) -> Iterator[Part]:
    """The demo in order; ``home`` receives everything it makes."""
    run, page = str(home / "run"), str(home / "report.html")
    place = ("--store", str(home / "memories"), "--work", str(home / "work"))
    tasks = [str(EXAMPLES / "tasks" / "cpu" / f"{task}.py") for task in TASKS]
    replayed = ("--llm", f"replay:{CASSETTE}", "--steps", str(STEPS), "--fixed-steps", "--seed", "0")
    yield Part(
        title=f"optimize {len(TASKS)} operators on this CPU: recorded answers, real builds, checks and timings",
        words=("optimize", *tasks, "--backend", "cpu", *replayed, "--run", run),
    )
    yield Part(
        title="let the run's log become a memory for the next run",
        words=("memory", "build", "--logs", run, "--name", NAME, *place, "--model", "hashing", "--no-replay"),
    )
    yield Part(title="write the report", words=("report", run, "--out", page))


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


def story(run: Path) -> Iterator[str]:
    """What each task gained, and what the memory had to do with it, from the run's log alone."""
    from artifacts.codec import decode
    from artifacts.measurement import describe_speedups, doubt_mark
    from artifacts.memory.shipped import load_memory
    from artifacts.run_events import LoggedStep, TaskFinished
    from artifacts.runlog import RunLog
    from pipeline.report.paired import paired_times

    log = RunLog.open(run)
    memory = load_memory("", log.manifest["memory"])
    events = list(log.events())
    steps = [decode(LoggedStep, event.payload) for event in events if event.kind == "step"]
    for done in (decode(TaskFinished, event.payload) for event in events if event.kind == "task_finished"):
        own = [step for step in steps if step.task_id == done.task_id]
        speedup = describe_speedups(done.speedups) or "no correct candidate"
        yield f"{done.task_id.rpartition('/')[2]}: {speedup}{_believe(doubt_mark(done.doubts))}"
        yield from from_memory(own[0].shown, memory)
        times = paired_times(own, done.best_step, done.confirmed)
        best_us = times.get(done.best_step, 0.0)
        for step in own:
            told = _answer(step, times.get(step.step_id))
            yield f"  {told}{_standing(step.step_id == done.best_step, times.get(step.step_id, best_us), best_us)}"


def _answer(step: LoggedStep, paired_us: float | None) -> str:
    """What became of an answer; times on one scale, since medians of different moments are not to be compared."""
    from artifacts.measurement import doubt_mark
    from pipeline.report.charts import microseconds

    measured = step.measurement
    if measured is None or paired_us is None:
        return f"answer {step.index + 1}: {step.error if measured is None else measured.outcome.value}"
    taken = microseconds(paired_us)
    return f"answer {step.index + 1}: {measured.outcome.value}, {taken}{_believe(doubt_mark(measured.doubts))}"


def _standing(winner: bool, own_us: float, best_us: float) -> str:
    """Why a candidate with the smaller time need not be the winner: a gain must be sure."""
    if winner:
        return " <- the winner"
    return ", not surely faster" if own_us < best_us else ""


def _believe(doubts: str) -> str:
    return f" ({doubts}: believe it less)" if doubts else ""


def from_memory(shown: Mapping[str, Sequence[str]], memory: Memory) -> Iterator[str]:
    """What the memory put before the first answer, where a run without one shows the task alone."""
    kernel = _named(memory, shown.get("reference kernel", ()))
    if kernel:
        yield f"  from memory, before answer 1: the verified kernel of {kernel}"
    steps = _named(memory, shown.get("device experience", ()))
    if steps:
        yield f"  from memory, before answer 1: steps that gained on {steps}"


def _named(memory: Memory, ids: Sequence[str]) -> str:
    """Operators of recorded steps, each once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = memory.table
    rows = table.filter(pc.is_in(table["transition_id"], pa.array(ids, table["transition_id"].type)))
    return ", ".join(sorted({task.rpartition("/")[2] for task in rows["task_id"].to_pylist()}))


def play(home: Path) -> Path:
    """Run every part, showing its command line, and return the path of the report.

    Raises:
        BadInputError: the examples are not here, or ``home`` is somebody else's.
        HtamError: whatever a part says.
    """
    from pipeline.cli import cli

    if not CASSETTE.exists():
        raise BadInputError(f"{CASSETTE} is missing", "reinstall the package")
    _make_anew(home)
    begin = time.monotonic()
    for number, part in enumerate(parts(home), 1):
        click.secho(f"\n[{number}] {part.title}", bold=True)
        click.secho(f"$ {shlex.join(['htam', *part.words])}", dim=True)
        start = time.monotonic()
        cli.main(list(part.words), standalone_mode=False, default_map={})
        click.secho(f"({time.monotonic() - start:.0f} s)", dim=True)
    click.secho(f"\nwhat came of it, in {time.monotonic() - begin:.0f} s", bold=True)
    for line in story(home / "run"):
        click.echo(line)
    click.echo(f"why a step did what it did: htam explain {shlex.quote(str(home / 'run'))} {TASKS[0]}/0.0")
    click.secho("\nopen the report:", bold=True)
    return home / "report.html"
