"""Simulated suites: tasks played side by side, with and without steps that move between them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from optimizer.arms import Arm
from optimizer.search.allotment import next_wave, sure_steps
from optimizer.simulator.episode import Episode, Game
from optimizer.simulator.world import World


def play_suite(
    world: World, tasks: Sequence[str], arm: Arm, steps: int, seed: str, *, moving: bool
) -> dict[str, Episode]:
    """Simulate the search of all ``tasks`` with ``steps`` steps each, or on average if they move."""
    games = [Game(world, task, arm, seed) for task in tasks]
    for game in games:
        for _ in range(sure_steps(steps) if moving else steps):
            game.step()
    while wave := next_wave(games, steps * len(games) - sum(game.steps_done for game in games), steps):
        for game in wave:
            game.step()
    return {game.task_id: game.episode() for game in games}


def suites_of(tasks: Sequence[str], size: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Divide tasks into suites of about ``size``, at random but always alike."""
    mixed = sorted(tasks)
    random.Random(seed).shuffle(mixed)
    count = max(1, round(len(mixed) / size))
    return (tuple(mixed[number::count]) for number in range(count))
