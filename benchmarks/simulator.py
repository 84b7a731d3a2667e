"""All arms and settings of direction choice, simulated: ``python -P benchmarks/simulator.py --store STORE NAME``.

1. Every arm over all tasks, paired with `feedback` and with `random` (directed as well, but by dice).
2. A grid, one setting at a time, on the training half of the tasks: around `plain`, which asks for evidence alone, then
   around what that pass supports, and so on. A pass takes over the one setting that is furthest ahead among those whose
   paired interval excludes zero; where there is none, the search is over.
3. The plain, the supported settings and the shipped ones on the held-out half, also in two other worlds: one where only
   the task's own records count, one where a direction is nearly always followed.

Writes benchmarks/results/simulator.json. docs/simulator.md says what such figures can show.
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

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402

from artifacts.codec import encode  # noqa: E402
from artifacts.memory.htg import Memory  # noqa: E402
from optimizer.arms import ARMS  # noqa: E402
from optimizer.run.opening import chosen_attention, load_memory  # noqa: E402
from optimizer.selection import SelectionSettings  # noqa: E402
from optimizer.simulator.arena import Arena, Contender  # noqa: E402
from optimizer.simulator.comparison import ArmResult, Played, results_of  # noqa: E402
from optimizer.simulator.world import WorldSettings  # noqa: E402

SILENT = ("no-local", "world-model")
"""Arms that differ from others by the text of prompts only, or that need a model."""

SELECTION: dict[str, tuple[float, ...]] = {
    "least_lead": (0.0, 0.7, 1.5),
    "least_evidence": (1.0, 10.0),
    "optimism": (0.0, 0.5, 1.0),
    "explore": (0.0, 0.05, 0.1, 0.3),
}
ATTENTION: dict[str, tuple[float, ...]] = {
    "temperature": (0.15, 0.3),
    "kappa": (5.0, 20.0, 60.0),
    "prefix": (0.0, 1.0),
    "overlay": (0.0, 2.0, 8.0),
    "arch_discount": (0.1, 0.5, 1.0),
}
PASSES = 2
WORLDS = {
    "default": WorldSettings(capped=False),
    "own records only": WorldSettings(foreign=0.0, capped=False),
    "directions nearly always followed": WorldSettings(kappa=0.5, capped=False),
}
"""Without the cap, in which most differences would be within a percent; see benchmarks/budget.py for both."""


class Stage:
    """Plays contenders on some tasks and keeps what was played, so that nothing is played twice."""

    def __init__(self, arena: Arena, options: argparse.Namespace, tasks: frozenset[str] | None = None) -> None:
        self._arena, self._options, self._tasks = arena, options, tasks
        self._played: Played = {}
        self.seconds = 0.0

    def results(self, contenders: list[Contender]) -> tuple[ArmResult, ...]:
        """Figures of contenders, the first of which the others are compared with."""
        for one in contenders:
            if one.label not in self._played:
                begun = time.perf_counter()
                self._played[one.label] = dict(
                    self._arena.play(one, steps=6, runs=self._options.runs, seed=self._options.seed, tasks=self._tasks)
                )
                self.seconds += time.perf_counter() - begun
        return results_of({one.label: self._played[one.label] for one in contenders})

    @property
    def episodes(self) -> int:
        """Simulated runs so far."""
        return sum(len(found) for tasks in self._played.values() for found in tasks.values())


def htam(label: str, selection: SelectionSettings) -> Contender:
    """The full arm under some settings."""
    return Contender(label=label, arm="htam", selection=selection)


def variants(base: SelectionSettings) -> Iterator[tuple[str, float, SelectionSettings]]:
    """Each setting on its own at each other value of the grid."""
    for name, values in SELECTION.items():
        for value in values:
            if value != getattr(base, name):
                yield name, value, replace(base, **{name: value})
    for name, values in ATTENTION.items():
        for value in values:
            if value != getattr(base.attention, name):
                yield name, value, replace(base, attention=replace(base.attention, **{name: value}))


def one_pass(stage: Stage, base: SelectionSettings, title: str) -> tuple[SelectionSettings, dict[str, Any]]:
    """``base`` with the one setting that is surely and furthest ahead of it, if any, and the figures of the grid."""
    grid = {f"{title}, {name}={value:g}": found for name, value, found in variants(base)}
    first, *others = stage.results([htam(title, base), *(htam(label, found) for label, found in grid.items())])
    show(f"{title}: grid on training tasks", (first, *others))
    ahead = {found.arm: found.difference.value for found in others if found.difference and found.difference.low > 0}
    chosen = max(ahead, key=ahead.__getitem__, default="")
    return grid.get(chosen, base), {"around": title, "taken over": chosen, "results": encode([first, *others])}


def supported(stage: Stage, plain: SelectionSettings) -> tuple[SelectionSettings, list[dict[str, Any]]]:
    """Settings that the training tasks support, starting from ``plain``, and all passes on the way."""
    settings, passes = plain, []
    for number in range(PASSES):
        better, found = one_pass(stage, settings, "plain" if number == 0 else f"pass {number}")
        passes.append(found)
        if better == settings:
            break
        settings = better
    return settings, passes


def show(title: str, results: tuple[ArmResult, ...]) -> None:
    """Print figures as factors of speed."""
    print(f"\n{title}\n{'':<44} {'speedup':>8}  {'against the first':>20}  directed  followed")
    for found in results:
        ahead = found.difference
        versus = "" if ahead is None else f"{2**ahead.value:.3f} ({2**ahead.low:.3f}-{2**ahead.high:.3f})"
        shares = f"{found.directed:>8.0%}  {found.followed:>8.0%}"
        print(f"{found.arm:<44} {2**found.progress.value:>8.3f}  {versus:>20}  {shares}", flush=True)


def all_arms(arena: Arena, options: argparse.Namespace, shipped: SelectionSettings) -> dict[str, Any]:
    """Every arm on every task, against `feedback` and against `random`."""
    stage = Stage(arena, options)
    names = [name for name in ARMS if name not in SILENT]
    ordered = {lead: [lead, *(name for name in names if name != lead)] for lead in ("feedback", "random")}
    found: dict[str, Any] = {}
    for lead, order in ordered.items():
        results = stage.results([Contender(label=name, arm=name, selection=shipped) for name in order])
        show(f"all arms against {lead}, shipped settings", results)
        found[f"against {lead}"] = encode(results)
    return found | {"episodes": stage.episodes, "seconds": stage.seconds}


def ceiling(memory: Memory, options: argparse.Namespace) -> None:
    """Print how far an oracle is ahead of `feedback` in each world: what a simulation could show at all."""
    for name, world in WORLDS.items():
        arena = Arena(memory, folds=options.folds, world=world)
        luck = {"steps": 6, "runs": options.runs, "seed": options.seed}
        played = {"feedback": dict(arena.play(Contender(label="feedback", arm="feedback"), **luck))}
        played["oracle"] = dict(arena.ceiling(**luck))
        show(f"all tasks, world: {name}", results_of(played))


def held_out(
    memory: Memory, options: argparse.Namespace, tasks: frozenset[str], settings: dict[str, SelectionSettings]
) -> dict[str, Any]:
    """Settings on tasks that chose none of them, in each world."""
    found: dict[str, Any] = {}
    for name, world in WORLDS.items():
        stage = Stage(Arena(memory, folds=options.folds, world=world), options, tasks)
        contenders = [
            Contender(label="feedback", arm="feedback"),
            *(htam(label, one) for label, one in settings.items()),
        ]
        contenders.append(Contender(label="random", arm="random", selection=settings["shipped"]))
        against_feedback = stage.results(contenders)
        against_plain = stage.results([contenders[1], *contenders[2:-1]])
        show(f"held-out tasks, world: {name}", against_feedback)
        show(f"held-out tasks, world: {name}", against_plain)
        found[name] = {"against feedback": encode(against_feedback), "against plain": encode(against_plain)}
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memory", help="NAME[@VERSION|@TAG]")
    parser.add_argument("--store", default="memories")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ceiling", action="store_true", help="only print how far an arm that knows the world comes")
    options = parser.parse_args()
    begun = time.perf_counter()
    memory = load_memory(options.store, options.memory)
    shipped = SelectionSettings(attention=chosen_attention(memory))
    arena = Arena(memory, folds=options.folds, world=WORLDS["default"])
    if options.ceiling:
        ceiling(memory, options)
        return
    training = frozenset(task for task in arena.tasks if zlib.crc32(task.encode()) % 2)
    arms = all_arms(arena, options, shipped)
    stage = Stage(arena, options, training)
    plain = replace(shipped, least_lead=0.0)
    best, passes = supported(stage, plain)
    settings = {"plain": plain, "supported": best, "shipped": shipped}
    rest = held_out(memory, options, frozenset(arena.tasks) - training, settings)
    figures = {
        "memory": {"transitions": len(memory), "tasks": len(arena.tasks), "training": len(training)},
        "settings": {name: encode(one) for name, one in settings.items()}
        | {"runs": options.runs, "steps": 6, "folds": options.folds, "seed": options.seed},
        "arms": arms,
        "grid": {"passes": passes, "episodes": stage.episodes, "seconds": stage.seconds},
        "held out": rest,
        "seconds": time.perf_counter() - begun,
    }
    write_results("simulator", figures)
    print(f"\nsupported: {encode(best)}\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
