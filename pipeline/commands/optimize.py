"""``htam optimize``: search tasks with a frozen memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from artifacts.errors import BadInputError
from pipeline.precision import precision_options
from pipeline.voice import long_command

STORE = "Where the run's memory is now, if no longer where the run found it."
"""Help of ``--store`` of the commands that resume a run."""

BUDGETS = (
    click.option(
        "--budget-usd", type=click.FloatRange(min=0, min_open=True), help="Stop before more money than this is spent."
    ),
    click.option("--budget-tokens", type=click.IntRange(min=1), help="Stop before more tokens than this are used."),
    click.option(
        "--budget-calls", type=click.IntRange(min=1), help="Stop before more answers than this are asked for."
    ),
    click.option(
        "--budget-gpu-s",
        type=click.FloatRange(min=0, min_open=True),
        help="Stop once devices have measured for so many seconds.",
    ),
    click.option(
        "--budget-wall-s", type=click.FloatRange(min=0, min_open=True), help="Stop after so many seconds of work."
    ),
    click.option(
        "--workers",
        default=2,
        show_default=True,
        type=click.IntRange(min=1),
        help="Candidates that are built side by side.",
    ),
    click.option(
        "--concurrency",
        default=16,
        show_default=True,
        type=click.IntRange(min=1),
        help="Calls to an endpoint under way at most.",
    ),
    click.option("--prices", type=click.Path(path_type=Path), help="Your own price file (TOML)."),
)


def budget_options(function: Any) -> Any:
    """Add the options that say what a session may use."""
    for option in reversed(BUDGETS):
        function = option(function)
    return function


def resources(options: dict[str, Any]) -> Any:
    """What the budget options allow."""
    from optimizer.llm.budget import BudgetLimits
    from optimizer.llm.prices import load_prices
    from optimizer.run.resources import Resources

    names = {"usd": "budget_usd", "tokens": "budget_tokens", "calls": "budget_calls"}
    names |= {"gpu_s": "budget_gpu_s", "wall_s": "budget_wall_s"}
    try:
        limits = BudgetLimits(**{name: options[option] for name, option in names.items()})
    except ValueError as problem:
        raise BadInputError(str(problem), "give a positive number") from problem
    load_prices(options["prices"])  # a file that cannot be used is better known before the first call
    return Resources(
        limits=limits, workers=options["workers"], concurrency=options["concurrency"], prices=options["prices"]
    )


def list_arms(context: click.Context, name: str) -> str:
    """``name``; of ``help`` every arm with what it does and where the idea is from, and the end of the command."""
    if name == "help":
        from optimizer.arms.registry import ARMS, SOURCES

        click.echo("\n".join(f"{arm:18} {meaning} ({SOURCES[arm]})" for arm, meaning in ARMS.items()))
        context.exit()
    return name


@click.command(name="optimize")
@click.argument("tasks", nargs=-1, type=click.Path(path_type=Path), metavar="TASK...")
@click.option(
    "--run",
    "path",
    required=True,
    type=click.Path(path_type=Path),
    help="Run directory; resumes the run if it exists.",
)
@click.option(
    "--memory",
    default="",
    help="NAME[@VERSION|@TAG] of the memory, none for none; the run pins the version "
    "[default: the shipped memory where it knows the device].",
)
@click.option(
    "--store",
    default="",
    help="Folder or fsspec URL that holds memories [default: memories; to resume: where the run found its own].",
)
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--llm", help="openai:MODEL, command:WORDS, replay:FILE or files[:MODEL].")
@click.option("--evaluator", default="local", show_default=True, help="local, files, or dask:ADDRESS of a scheduler.")
@click.option(
    "--arm",
    default="htam",
    show_default=True,
    is_eager=True,
    callback=lambda context, _, name: list_arms(context, name),
    help="How steps are chosen; help lists them.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Steps a task (T) on average; an existing run may be given more [default: 6; to resume: as before].",
)
@click.option("--candidates", default=1, show_default=True, type=click.IntRange(min=1), help="Candidates a step (N).")
@click.option(
    "--explore",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of steps with a random direction, for logs that support off-policy estimates.",
)
@click.option(
    "--margin",
    default=1.5,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Standard deviations over the no-direction baseline that the gate asks for.",
)
@click.option(
    "--language",
    type=click.Choice(["cuda", "triton", "cpp", "numba"]),
    help="Of the candidates; by default that of the backend.",
)
@click.option("--device", default="", help="Name of the measuring device, e.g. h200; found out for local evaluation.")
@click.option(
    "--leave-out",
    type=click.Choice(["none", "task", "family"]),
    default="none",
    show_default=True,
    help="What the memory must forget of these tasks.",
)
@click.option(
    "--fixed-steps", is_flag=True, help="Every task takes exactly T steps; else some move to tasks that improve."
)
@click.option(
    "--confirm/--no-confirm",
    default=None,
    help="Measure each winner again after the search, in a new process with other seeds [default: confirm].",
)
@click.option("--seed", type=click.IntRange(min=0), help="Secret of the run; random by default.")
@click.option("--temperature", type=click.FloatRange(min=0), help="Of the model; by default the endpoint's own.")
@click.option("--max-tokens", default=16384, show_default=True, type=click.IntRange(min=1), help="Longest answer.")
@click.option(
    "--answers",
    type=click.Choice(["file", "edits"]),
    default="file",
    show_default=True,
    help="What later steps answer with: the whole file, or edits of the candidate they start from.",
)
@click.option("--tunables", is_flag=True, help="Let candidates declare constants that a program searches.")
@precision_options
@click.option("--profile", is_flag=True, help="Read hardware counters where the host allows it.")
@click.option("--json", "as_json", is_flag=True, help="Print where the run stands as JSON.")
@budget_options
@long_command("preparing the run")
def command(tasks: tuple[Path, ...], path: Path, as_json: bool, **options: Any) -> None:
    """Optimize the tasks in TASK (files, folders, a KernelBench checkout) with a frozen memory.

    Without TASK, the run of --run resumes with its own settings; its steps and budgets may be raised.

    \b
    Examples:
      htam optimize examples/tasks/cpu --memory demo --llm openai:gpt-5 --run runs/first
      htam optimize --run runs/first --steps 8 --budget-usd 20
      htam optimize softmax.py --arm feedback --llm files --evaluator files --backend cuda --device h200 --run runs/b
    """
    from artifacts.runlog import RunLog
    from optimizer.arms.registry import WITHOUT_MEMORY
    from optimizer.run.manifest import read_manifest
    from optimizer.run.opening import create_run
    from optimizer.run.resources import require_here
    from optimizer.tasks import load_tasks
    from pipeline.run_request import resumed, wanted_manifest
    from pipeline.running import advance

    context = click.get_current_context()
    usual = {name for name in options if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP}
    if "memory" in usual and options["arm"] in WITHOUT_MEMORY:
        options["memory"] = ""
    if RunLog.is_run(path):  # which has its own
        options |= {name: None if name == "steps" else "" for name in usual & {"store", "steps"}}
    allowed = resources(options)
    if tasks:
        found = load_tasks(tasks)
        manifest = wanted_manifest(path, found, options)
        require_here(manifest, allowed)
        log = create_run(path, manifest, found)
    else:
        given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        log = resumed(path, options["steps"], [name for name in given if name != "tasks"])
        require_here(read_manifest(log), allowed)
    advance(log, allowed, store=options["store"], as_json=as_json)
