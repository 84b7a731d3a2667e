"""``htam mcp``: give a coding agent the judge and the memory as tools."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import click

from artifacts.errors import UnavailableError
from pipeline.precision import precision_options


@click.command(name="mcp")
@click.option(
    "--root",
    default=".",
    show_default=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder below which every file lies that a tool may read.",
)
@click.option(
    "--run",
    "runs",
    type=click.Path(path_type=Path),
    help="Folder of the run directories, one a task [default: a new one in ROOT/runs]. One that exists is resumed.",
)
@click.option(
    "--memory",
    default="",
    help="NAME[@VERSION|@TAG] of the memory [default: the shipped one where it knows the device]; none for none.",
)
@click.option("--store", default="", help="Folder or fsspec URL that holds memories [default: memories].")
@click.option(
    "--recall",
    type=click.Choice(["none", "memory", "shuffled"]),
    default="memory",
    show_default=True,
    help="What recall shows; none and shuffled are for studies.",
)
@click.option("--evaluations", type=click.IntRange(min=1), help="Candidates of a task that are measured at most.")
@click.option("--agent", default="agent", show_default=True, help="Name of the model in the log.")
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--language", type=click.Choice(["cuda", "triton", "cpp", "numba"]), help="Of kernels that recall shows.")
@click.option("--device", default="", help="Name of the device; found out by default.")
@click.option(
    "--leave-out",
    type=click.Choice(["none", "task", "family"]),
    default="none",
    show_default=True,
    help="What the memory must forget of a task that is worked on.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Secret of hidden inputs; random by default.")
@precision_options
@click.option("--profile", is_flag=True, help="Read hardware counters where the host allows it.")
def command(root: Path, runs: Path | None, recall: str, evaluations: int | None, agent: str, **options: Any) -> None:
    """Serve one coding agent over stdin and stdout (MCP): recall, evaluate, explain and more.

    Clients start it themselves (docs/how-to/own-agent.md). Every evaluation is a step of a run directory, which
    report, logs and memory build read as they read any run.

    \b
    Examples:
      htam mcp --root . --memory team --backend cuda
    """
    try:
        from pipeline.mcp.server import serve
    except ImportError as problem:
        raise UnavailableError(f"htam mcp needs a package: {problem}", "pip install 'htam-kernels[mcp]'") from problem
    from optimizer.evaluation.worker.devices import devices_of
    from pipeline.mcp.session import SessionSettings

    if recall == "none":
        options["memory"] = ""
    devices_of(options["backend"])
    top = root.resolve()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    settings = SessionSettings(
        root=top,
        runs=runs.resolve() if runs else top / "runs" / f"agent-{stamp}-{os.getpid()}",
        recall=recall,
        evaluations=evaluations,
        agent=agent,
        words=_words(options),
    )
    asyncio.run(serve(settings))


def _words(options: dict[str, Any]) -> tuple[str, ...]:
    """The options that are those of ``htam optimize``, as it reads them."""
    baselines = [word for name in options.pop("baselines") for word in ("--baseline", name)]
    flags = [f"--{name}" for name, value in options.items() if value is True]
    valued = {name: value for name, value in options.items() if value not in (None, "", True, False)}
    words = [word for name, value in valued.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return (*words, *flags, *baselines)
