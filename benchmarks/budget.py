"""What moves a simulated search: arms, and steps that move between tasks: ``python -P benchmarks/budget.py NAME``.

Choices were made on the training half of the tasks; figures are of the held-out half. Two worlds: one in which nobody
gets further than the best that was recorded of a task (the default), one in which gains add up without end. Each
suite of about 13 tasks is played with the same number of steps for all, with steps that move as `optimize` moves them,
and with steps that go where the state model of the memory promises most, as they did before. How often a step gains
after none, one or many steps without gain is counted in the logs themselves, beside the simulation.

Writes benchmarks/results/budget.json. docs/simulator.md says what such figures can show.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.codec import encode  # noqa: E402
from artifacts.memory.attention import ATTENDED, AttentionSettings, expected_gain  # noqa: E402
from artifacts.memory.htg import Memory  # noqa: E402
from optimizer.arms import make_arm  # noqa: E402
from optimizer.run.opening import load_memory  # noqa: E402
from optimizer.selection import SelectionSettings  # noqa: E402
from optimizer.simulator.arena import SUITE, Arena, Contender  # noqa: E402
from optimizer.simulator.comparison import Interval, ahead_at_the_end, results_of  # noqa: E402
from optimizer.simulator.episode import Episode, Game  # noqa: E402
from optimizer.simulator.suite import suites_of  # noqa: E402
from optimizer.simulator.world import WorldSettings  # noqa: E402

WORLDS = {"nobody beyond the best record": WorldSettings(), "gains add up": WorldSettings(capped=False)}
BUDGETS = (4, 6, 10)
STAGNATION = ((0, 0), (1, 1), (2, 2), (3, 5), (6, 99))
TELLING = 0.07
"""Log2 gain from which a step counts as gaining: 5 %."""

FEEDBACK = Contender(label="feedback", arm="feedback")
QUIET = SelectionSettings(explore=0.0)
"""Without random directions, which cost every arm that chooses and hide what choosing costs."""

SCORES = {"means over siblings": AttentionSettings(), "attention": ATTENDED}
ARMS = (
    FEEDBACK,
    *(
        Contender(
            label=f"htam, {name}, lead {lead:g}",
            arm="htam",
            selection=replace(QUIET, least_lead=lead, attention=attention),
        )
        for name, attention in SCORES.items()
        for lead in (0.0, 0.7, 1.5)
    ),
    Contender(label="shuffled, lead 0", arm="shuffled", selection=replace(QUIET, least_lead=0.0)),
    *(Contender(label=arm, arm=arm, selection=QUIET) for arm in ("flat", "random", "bandit")),
    *(
        Contender(label=f"htam, {share:g} at random", arm="htam", selection=replace(QUIET, explore=share))
        for share in (0.05, 0.1)
    ),
)


def gains_by_stagnation(memory: Memory) -> list[dict[str, Any]]:
    """How often recorded steps gain after so many steps without gain from the same parent."""
    stagnation, step = (memory.columns.numbers[name] for name in ("stagnation", "step"))
    rows = []
    for low, high in STAGNATION:
        gain = memory.gains[~np.isnan(memory.gains) & (step > 0) & (stagnation >= low) & (stagnation <= high)]
        share, mean = float((gain > TELLING).mean()), float(np.maximum(gain, 0).mean())
        rows.append({"fruitless": [low, high], "steps": len(gain), "gaining": share, "mean_gain_log2": mean})
    return rows


def by_promise(arena: Arena, steps: int, runs: int, seed: int, tasks: frozenset[str]) -> dict[str, list[Episode]]:
    """Suites in which all steps after the first two thirds go to the highest prediction of the memory's state model."""
    found: dict[str, list[Episode]] = {}
    for world, known in arena.grounds:
        arm = make_arm("feedback", known, SelectionSettings())
        for names in suites_of([task for task in world.tasks() if task in tasks], SUITE, seed):
            for run in range(runs):
                games = [Game(world, task, arm, f"{seed}/{run}") for task in names]
                for game in _promised(games, steps, known):
                    found.setdefault(game.task_id, []).append(game.episode())
    return found


def _promised(games: list[Game], steps: int, memory: Memory) -> Iterator[Game]:
    for game in games:
        for _ in range(-(-2 * steps // 3)):
            game.step()
    for _ in range(steps * len(games) - sum(game.steps_done for game in games)):
        able = [game for game in games if game.steps_done < 2 * steps]
        max(able, key=lambda game: expected_gain(memory, game.state)).step()
    yield from games


def factor(found: Interval | None) -> str:
    """A difference in log2 as a factor with its interval."""
    return "" if found is None else f"{2**found.value:.3f} [{2**found.low:.3f}, {2**found.high:.3f}]"


def arms(arena: Arena, options: argparse.Namespace, tasks: frozenset[str]) -> Any:
    """All arms against feedback, six steps."""
    luck: dict[str, Any] = {"steps": 6, "runs": options.runs, "seed": 0, "tasks": tasks}
    played = {one.label: dict(arena.play(one, **luck)) for one in ARMS}
    played["an arm that knows the world"] = dict(arena.ceiling(**luck))
    results = results_of(played)
    for one in results:
        reached = f"{2**one.progress.value:.3f}"
        print(f"{one.arm:<40} {reached}  end {factor(one.difference):<24} all steps {factor(one.sooner)}", flush=True)
    return encode(results)


def moved(arena: Arena, options: argparse.Namespace, tasks: frozenset[str]) -> list[dict[str, Any]]:
    """Steps that move against steps that do not, at each budget."""
    rows = []
    for steps in BUDGETS:
        luck: dict[str, Any] = {"steps": steps, "runs": 2 * options.runs, "seed": 0, "tasks": tasks}
        even = arena.suites(FEEDBACK, **luck, moving=False)
        rules = {
            "to those that improved last": arena.suites(FEEDBACK, **luck, moving=True),
            "to those whose state promises most": by_promise(arena, **luck),
        }
        for name, played in rules.items():
            ahead = ahead_at_the_end(played, even)
            print(f"T={steps:<3} steps move {name:<36} {factor(ahead)}", flush=True)
            rows.append({"steps": steps, "rule": name, "against even": encode(ahead)})
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memory", help="NAME[@VERSION|@TAG]")
    parser.add_argument("--store", default="memories")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    begun = time.perf_counter()
    memory = load_memory(options.store, options.memory)
    figures: dict[str, Any] = {"gain after fruitless steps": gains_by_stagnation(memory)}
    for row in figures["gain after fruitless steps"]:
        print(row)
    for name, world in WORLDS.items():
        arena = Arena(memory, folds=5, world=world)
        held_out = frozenset(task for task in arena.tasks if not zlib.crc32(task.encode()) % 2)
        print(f"\n{name}, {len(held_out)} held-out tasks")
        figures[name] = {"arms": arms(arena, options, held_out), "moved": moved(arena, options, held_out)}
    figures |= {"memory": {"transitions": len(memory), "tasks": len(arena.tasks), "held_out": len(held_out)}}
    figures |= {"settings": {"runs": options.runs, "folds": 5}, "seconds": time.perf_counter() - begun}
    write_results("budget", figures)


if __name__ == "__main__":
    main()
