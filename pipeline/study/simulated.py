"""Cells that are played in the simulator: tasks of one part of the base, with what another part knows of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import numpy as np

from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from builder.judge.transfer import Part, restricted
from optimizer.simulator.arena import Arena, Contender
from optimizer.simulator.comparison import ArmResult, SimulationSettings, results_of
from optimizer.simulator.episode import Episode
from pipeline.commands.simulate import command, settings_of
from pipeline.study.leaving import without
from pipeline.study.spec import Cell, StudyTarget


def simulated(cell: Cell, base: Memory) -> dict[str, Any]:
    """Play every task of the target as often as its options say; speedups are means over those runs.

    Raises:
        BadInputError: a wrong option, or a part of the base that holds too little.
    """
    settings = simulation_of(cell.target, cell.arm, cell.seed, base)
    source = restricted(base, cell.memory.part if cell.memory else Part())
    world = restricted(base, cell.target.part)
    arena = Arena(
        world, folds=settings.folds, world=settings.world, known=partial(knowledge, source, world, cell.leave_out)
    )
    contender = Contender(label=cell.arm, arm=cell.arm, selection=settings.selection)
    played = dict(arena.play(contender, steps=settings.steps, runs=settings.runs, seed=cell.seed))
    (figures,) = results_of({cell.arm: played})
    return {"speedups": {task: _speedup(found) for task, found in sorted(played.items())}} | _shares(figures, settings)


def _shares(figures: ArmResult, settings: SimulationSettings) -> dict[str, float]:
    return {"runs": settings.runs, "directed": figures.directed, "followed": figures.followed}


def simulation_of(target: StudyTarget, arm: str, seed: int, base: Memory) -> SimulationSettings:
    """What a target's options ask for.

    Raises:
        BadInputError: an option that ``htam simulate`` does not know, or a value that it does not take.
    """
    words = ["--memory", base.reference, "--arm", arm, "--seed", str(seed), *target.words]
    try:
        return settings_of(command.make_context("htam simulate", words).params, base)
    except click.ClickException as problem:
        raise BadInputError(f"target {target.name!r}: {problem.format_message()}", "see htam simulate --help") from None


def knowledge(source: Memory, world: Memory, leave_out: str, group: Sequence[str]) -> Memory:
    """What ``source`` knows beside the tasks (the families) of a group of ``world``."""
    tasks = world.columns.task
    families = set(world.rows(np.isin(tasks.values, [tasks.code(task) for task in group])).table["family"].to_pylist())
    return without(source, group, families if leave_out == "family" else set())


def _speedup(episodes: Sequence[Episode]) -> float:
    return float(2.0 ** (sum(episode.progress[-1] for episode in episodes) / len(episodes)))
