"""``htam memory``: build, inspect, compare and publish memories."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import click

from pipeline.commands import memory_cluster, memory_replay
from pipeline.voice import counted, long_command

STORE = click.option("--store", default="memories", show_default=True, help="Folder or fsspec URL that holds memories.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(name="memory")
def command() -> None:
    """Build, inspect, compare and publish memories.

    A memory is named NAME, NAME@VERSION (or the beginning of one) or NAME@TAG; NAME alone is NAME@latest.
    """


@command.command(name="list")
@click.argument("name", required=False)
@STORE
@JSON
def list_(name: str | None, store: str, as_json: bool) -> None:
    """List the published versions, oldest first.

    \b
    Examples:
      htam memory list
      htam memory list demo --store memories --json
    """
    from pipeline import memory_text

    click.echo(memory_text.versions(store, name, as_json))


@command.command(name="show", short_help="Show a memory, or one direction or strategy of it.")
@click.argument("reference", metavar="MEMORY")
@click.argument("item", required=False, metavar="[DIRECTION|STRATEGY]")
@STORE
@JSON
def show(reference: str, item: str | None, store: str, as_json: bool) -> None:
    """Show a memory, or one direction or strategy with the transitions it rests on.

    \b
    Examples:
      htam memory show demo
      htam memory show demo@latest STRATEGY --json
    """
    from artifacts.memory.shipped import load_memory
    from pipeline import memory_text

    click.echo(memory_text.shown(load_memory(store, reference), item, as_json))


@command.command(name="kernels", short_help="List the kernels that a memory shows, or print one.")
@click.argument("reference", metavar="MEMORY")
@click.argument("sha256", required=False, metavar="[SHA256]")
@STORE
@JSON
def kernels(reference: str, sha256: str | None, store: str, as_json: bool) -> None:
    """List the kernels that a memory shows to models, or print the one whose hash begins so.

    \b
    Examples:
      htam memory kernels demo
      htam memory kernels demo 3f9a > kernel.py
    """
    from artifacts.memory.shipped import load_memory
    from pipeline import memory_text

    click.echo(memory_text.kernels(load_memory(store, reference), sha256, as_json))


@command.command(name="verify")
@click.argument("reference", metavar="MEMORY")
@STORE
def verify(reference: str, store: str) -> None:
    """Check every byte and row of a memory against its manifest.

    \b
    Examples:
      htam memory verify demo@prod
    """
    from artifacts.memory.store import MemoryStore, split_reference

    version = MemoryStore(store).verify(*split_reference(reference))
    click.echo(f"{version.reference} is whole: {counted(len(version.manifest.files), 'file')}")


@command.command(name="promote")
@click.argument("reference", metavar="MEMORY")
@click.argument("tag")
@STORE
def promote(reference: str, tag: str, store: str) -> None:
    """Point TAG at a version.

    \b
    Examples:
      htam memory promote demo@4f2a prod
    """
    from artifacts.memory.store import MemoryStore, split_reference

    memories = MemoryStore(store)
    name, at = split_reference(reference)
    version = memories.resolve(name, at)
    memories.promote(name, version, tag)
    click.echo(f"{name}@{tag} is {name}@{version}")


@command.command(name="diff", short_help="Say what changed from one memory to another.")
@click.argument("before", metavar="OLD")
@click.argument("after", metavar="NEW")
@STORE
@JSON
def diff(before: str, after: str, store: str, as_json: bool) -> None:
    """Say what changed from one memory to another: directions, strategies, effects, replay figures.

    \b
    Examples:
      htam memory diff demo@4f2a demo@latest
    """
    from artifacts.memory.shipped import load_memory
    from pipeline.report.lesson import lesson_of

    lesson = lesson_of(load_memory(store, before), load_memory(store, after))
    click.echo(lesson.json() if as_json else lesson.text())


@command.command(name="moves", short_help="List the moves that apply to a kernel, with their record.")
@click.argument("file", metavar="TASK|KERNEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--memory", "reference", required=True, help="Memory: NAME, NAME@VERSION or NAME@TAG.")
@click.option("--device", default="", help="Architecture such as sm_90, or cpu; every device if not given.")
@click.option("--bound", default="", help="What limits the kernel: memory, compute, latency or launch.")
@STORE
@JSON
def moves(file: Path, reference: str, device: str, bound: str, store: str, as_json: bool) -> None:
    """List the moves that apply to the kernel in a file, with what they gained from where it stands.

    A task file, which defines Model and no ModelNew, is a start without any technique.

    \b
    Examples:
      htam memory moves kernel.py --memory demo --device sm_90
      htam memory moves examples/tasks/cuda/layer_norm.py --memory demo --json
    """
    from artifacts.memory.shipped import load_memory
    from pipeline import memory_text

    click.echo(memory_text.moves(load_memory(store, reference), file, device, bound, as_json))


@command.command(name="lineage", short_help="Walk an expert kernel backwards and log what each idea is worth.")
@click.argument("kernel", metavar="KERNEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--task", "task", required=True, type=click.Path(exists=True, path_type=Path), help="Its task file.")
@click.option("--llm", required=True, help="openai:MODEL, command:WORDS or replay:FILE.")
@click.option("--run", "run", required=True, type=click.Path(path_type=Path), help="Directory of the run log.")
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--answers", "most", default=12, show_default=True, type=click.IntRange(min=1), help="Answers at most.")
def lineage(kernel: Path, task: Path, llm: str, run: Path, backend: str, most: int) -> None:
    """Take one technique after the other out of KERNEL by a model; each version is built, checked and timed.

    Read forwards, the versions are the measured steps of an ordinary run log, which `htam memory build` reads.

    \b
    Examples:
      htam memory lineage best/layer_norm.py --task layer_norm.py --llm openai:gpt-5 --run runs/backwards
    """
    from pipeline.lineage import walk_back

    click.echo(walk_back(kernel, task, llm, run, backend, most))


@command.command(name="gc", short_help="Remove the versions that nothing holds.")
@click.argument("name")
@click.option("--runs", multiple=True, type=click.Path(), help="Folder of runs whose memories are kept; repeatable.")
@click.option(
    "--newest", default=1, show_default=True, type=click.IntRange(min=0), help="Newest versions to keep anyway."
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed and remove nothing.")
@STORE
def gc(name: str, runs: tuple[str, ...], newest: int, dry_run: bool, store: str) -> None:
    """Remove the versions of NAME that no tag, no pin and no run log holds.

    \b
    Examples:
      htam memory gc demo --runs runs --dry-run
    """
    from artifacts.memory.retention import gc as collect
    from artifacts.memory.store import MemoryStore

    memories = MemoryStore(store)
    if not memories.versions(name):
        memories.resolve(name)  # says what there is
    done = collect(memories, name, runs=runs, newest=newest, dry_run=dry_run)
    for version, holder in done.kept.items():
        click.echo(f"kept     {name}@{version} ({holder})")
    for version in done.removed:
        click.echo(f"{'would remove' if dry_run else 'removed'}  {name}@{version}")


@command.command(name="export")
@click.argument("reference", metavar="MEMORY")
@click.option("--format", "shape", type=click.Choice(["jsonl", "traces"]), default="jsonl", show_default=True)
@click.option(
    "--out", type=click.File("w", encoding="utf-8", lazy=True), default="-", help="File; standard output if not given."
)
@STORE
def export(reference: str, shape: str, out: TextIO, store: str) -> None:
    """Write a memory as JSON lines for other tools.

    \b
    Examples:
      htam memory export demo --out demo.jsonl
      htam memory export demo --format traces
    """
    from artifacts.memory.export import export_lines, solution_lines
    from artifacts.memory.shipped import load_memory

    memory = load_memory(store, reference)
    for line in export_lines(memory) if shape == "jsonl" else solution_lines(memory):
        click.echo(line, file=out)


@command.command(name="build", short_help="Build a memory from logs and publish it.")
@click.option("--logs", multiple=True, required=True, type=click.Path(), help="Folder or file of logs; repeatable.")
@STORE
@click.option("--name", required=True, help="Name of the memory.")
@click.option("--tag", default="latest", show_default=True, help="Tag that the new version gets.")
@click.option(
    "--model", default="all-MiniLM-L6-v2", show_default=True, help="Encoder: hub name, folder, or hashing for none."
)
@click.option("--work", default=".htam", show_default=True, help="Folder for caches and Prefect's database.")
@click.option("--no-replay", is_flag=True, help="Do not validate the memory on held-out operators.")
@click.option("--force", is_flag=True, help="Publish even when replay is worse than that of the version under the tag.")
@click.option(
    "--runner",
    type=click.Choice(["here", "threads", "processes", "dask"]),
    default="here",
    show_default=True,
    help="This process without a server, or a Prefect flow on threads, processes or Dask.",
)
@click.option(
    "--workers",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Parallel tasks or local worker processes; 0: one a core.",
)
@long_command("starting the build")
def build(logs: tuple[str, ...], store: str, name: str, **options: Any) -> None:
    """Build a memory from logs and publish it; what was read and embedded before is remembered.

    \b
    Examples:
      htam memory build --logs runs --name team
      htam memory build --logs runs --logs archive --store memories --name team --tag candidate --runner dask
    """
    from pipeline.building import build_memory

    click.echo(build_memory(list(logs), store, name, **options))


command.add_command(memory_cluster.command, "cluster-text")
command.add_command(memory_replay.command, "replay")
