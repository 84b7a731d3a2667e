"""``htam simulate``: arms compared on held-out transitions, without model or GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from artifacts.errors import BadInputError

if TYPE_CHECKING:
    from artifacts.memory.htg import Memory
    from optimizer.simulator.comparison import SimulationSettings


@click.command(name="simulate")
@click.option("--memory", "reference", required=True, help="NAME[@VERSION|@TAG] whose transitions are divided.")
@click.option("--store", default="memories", show_default=True, help="Folder or fsspec URL that holds memories.")
@click.option(
    "--arm",
    "arms",
    multiple=True,
    default=("feedback", "htam", "flat"),
    show_default=True,
    help="Arms; the first is what the others are compared with.",
)
@click.option("--steps", default=6, show_default=True, type=click.IntRange(min=1), help="Steps of a run (T).")
@click.option("--runs", default=10, show_default=True, type=click.IntRange(min=1), help="Runs of each task and arm.")
@click.option(
    "--folds",
    default=5,
    show_default=True,
    type=click.IntRange(min=2),
    help="Groups of tasks; an arm never knows the group it works on.",
)
@click.option(
    "--explore",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of steps with a random direction, for logs that tell causes.",
)
@click.option(
    "--optimism",
    default=0.5,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Standard deviations added to a direction's mean.",
)
@click.option(
    "--lead",
    default=1.5,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Standard deviations over the state alone that the gate asks for.",
)
@click.option(
    "--foreign",
    default=0.02,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Weight of other tasks' records beside the task's own.",
)
@click.option("--uncapped", is_flag=True, help="Let gains add up beyond the best that was recorded of a task.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(reference: str, store: str, as_json: bool, **options: Any) -> None:
    """Compare arms by playing searches against the memory's own transitions.

    Each task is played with a memory that has forgotten its whole group; outcomes are drawn from the group's
    recorded transitions near the simulated state. What this can and cannot show is in docs/simulator.md.

    \b
    Examples:
      htam simulate --memory demo
      htam simulate --memory demo@latest --arm feedback --arm htam --arm frozen --runs 50 --json
    """
    from artifacts.codec import encode
    from optimizer.run.opening import load_memory
    from optimizer.simulator.comparison import compare

    memory = load_memory(store, reference)
    found = compare(memory, settings_of(options, memory), _tell)
    click.echo(json.dumps(encode(found), indent=2) if as_json else _table(found))


def settings_of(options: Mapping[str, Any], memory: Memory) -> SimulationSettings:
    """What the options ask for, with the scorer that replay chose for ``memory``.

    Raises:
        BadInputError: an option has a value that cannot be simulated.
    """
    from optimizer.run.opening import chosen_attention
    from optimizer.selection import SelectionSettings
    from optimizer.simulator.comparison import SimulationSettings
    from optimizer.simulator.world import WorldSettings

    try:
        return SimulationSettings(
            **{name: options[name] for name in ("arms", "steps", "runs", "folds", "seed")},
            selection=SelectionSettings(
                explore=options["explore"],
                optimism=options["optimism"],
                least_lead=options["lead"],
                attention=chosen_attention(memory),
            ),
            world=WorldSettings(foreign=options["foreign"], capped=not options["uncapped"]),
        )
    except ValueError as problem:
        raise BadInputError(str(problem), "see htam simulate --help") from problem


def _tell(done: int, total: int) -> None:
    """Say how far it is, on a terminal only and in one line."""
    if sys.stderr.isatty():
        click.echo(f"\r{done}/{total} tasks and arms", nl=done == total, err=True)


def _table(found: Any) -> str:
    """The comparison as text; gains are factors of speed, means over tasks are geometric."""
    lines = [
        f"{found.memory}: {found.tasks} tasks, {found.transitions} transitions, {found.episodes} simulated runs",
        f"{'arm':<12} {'speedup':>8}  {'95 %':>13}  {'against ' + found.arms[0].arm:>20}  {'over all steps':>20}  "
        "directed  followed  correct",
    ]
    for result in found.arms:
        reached = result.progress
        versus = f"{_factor(result.difference):>20}  {_factor(result.sooner):>20}"
        interval = f"{2**reached.low:.3f}-{2**reached.high:.3f}"
        shares = f"{result.directed:>8.0%}  {result.followed:>8.0%}  {result.correct:>7.0%}"
        lines.append(f"{result.arm:<12} {2**reached.value:>8.3f}  {interval:>13}  {versus}  {shares}")
    return "\n".join(lines)


def _factor(interval: Any) -> str:
    """A difference in log2 as a factor of speed with its interval."""
    return "" if interval is None else f"{2**interval.value:.3f} ({2**interval.low:.3f}-{2**interval.high:.3f})"
