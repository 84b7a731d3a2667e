"""How often do 95 % intervals of effects hold the truth? ``python benchmarks/effects.py`` (a minute on one core).

Draws worlds in which steps share plans, plans tasks and tasks sources, with heavy tails and uneven trust, estimates
each world's effect as memories do and in two plainer ways, and writes benchmarks/results/effects.json: by scenario the
share of intervals that hold the true mean, and their mean width in log2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import write_results  # noqa: E402

from artifacts.memory.columns import Codes, Columns  # noqa: E402
from artifacts.memory.effects import effects_by  # noqa: E402
from artifacts.statistics import by_task, resampled  # noqa: E402

Array = npt.NDArray[np.float64]
Codes64 = npt.NDArray[np.int64]
TRUST = (1.0, 0.9, 0.7, 0.5, 0.1)
OFTEN = (0.5, 0.2, 0.1, 0.15, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How steps come about; spreads are standard deviations in log2.

    Attributes:
        steps: of each task; 0 for a geometric number of mean 6.
        tails: of task means: ``normal``, ``heavy`` (t with 3 degrees of freedom) or ``skewed`` (exponential).
    """

    tasks: int = 13
    steps: int = 8
    effect: float = 0.3
    tails: str = "heavy"
    between_tasks: float = 0.4
    sources: int = 1
    between_sources: float = 0.0


SCENARIOS = {
    "13 tasks of 8 steps": Scenario(),
    "13 tasks, normal": Scenario(tails="normal"),
    "13 tasks, skewed": Scenario(tails="skewed"),
    "13 tasks, no effect": Scenario(effect=0.0),
    "13 tasks, effect 2x": Scenario(effect=1.0),
    "13 tasks, spread 0.1": Scenario(between_tasks=0.1),
    "13 tasks, spread 0.8": Scenario(between_tasks=0.8),
    "13 tasks, uneven steps": Scenario(steps=0),
    "3 tasks": Scenario(tasks=3),
    "4 tasks": Scenario(tasks=4),
    "5 tasks": Scenario(tasks=5),
    "8 tasks": Scenario(tasks=8),
    "30 tasks": Scenario(tasks=30),
    "13 tasks of 5 sources alike": Scenario(steps=0, sources=5),
    "13 tasks of 5 sources that differ": Scenario(steps=0, sources=5, between_sources=0.3),
    "40 tasks of 5 sources that differ": Scenario(tasks=40, steps=0, sources=5, between_sources=0.3),
}


@dataclass(frozen=True, slots=True)
class Worlds:
    """Steps of many worlds, all arrays of shape [steps]; tasks, plans and sources are numbered over all worlds."""

    world: Codes64
    task: Codes64
    plan: Codes64
    source: Codes64
    gain: Array
    trust: Array

    def columns(self) -> Columns:
        """The steps as a memory's columns."""
        count = len(self.world)
        nothing = np.zeros(count, np.int32)

        def named(values: Codes64) -> Codes:
            return Codes(tuple(map(str, range(int(values.max()) + 1))), values.astype(np.int32))

        return Columns(
            direction=named(self.world),
            strategy=named(self.world),
            categories={},
            numbers={},
            feature_names=(),
            features=np.zeros((count, 0), np.bool_),
            previous=nothing[:, None],
            reward=np.clip(self.gain, -4, 4).astype(np.float32),
            expected=np.zeros(count, np.float32),
            rated=np.ones(count, np.bool_),
            failed=np.zeros(count, np.bool_),
            parent_timed=np.ones(count, np.bool_),
            weight=self.trust.astype(np.float32),
            task=named(self.task),
            operator=named(self.task),
            source=named(self.source),
            siblings=nothing,
            plan=self.plan.astype(np.int32),
        )


def drawn(scenario: Scenario, worlds: int, rng: np.random.Generator) -> Worlds:
    """Steps of ``worlds`` worlds: plans of one to three steps and one trust, within tasks, within sources."""
    tasks = worlds * scenario.tasks
    world = np.repeat(np.arange(worlds), scenario.tasks)
    source = world * scenario.sources + rng.integers(0, scenario.sources, tasks)
    shift = rng.normal(0.0, scenario.between_sources, worlds * scenario.sources)[source]
    middle = scenario.effect + shift + scenario.between_tasks * _tails(scenario.tails, rng, tasks)
    steps = np.full(tasks, scenario.steps) if scenario.steps else np.clip(rng.geometric(1 / 6, tasks), 1, 60)
    task = np.repeat(np.arange(tasks), steps)
    starts = rng.random(len(task)) < 0.5
    starts[np.concatenate(([0], np.cumsum(steps)[:-1]))] = True
    plan = np.cumsum(starts) - 1
    plans = int(plan[-1]) + 1
    gain = middle[task] + (0.3 * rng.standard_t(3, plans))[plan] + 0.1 * rng.standard_t(3, len(task))
    return Worlds(world[task], task, plan, source[task], gain, rng.choice(TRUST, plans, p=OFTEN)[plan])


def _tails(kind: str, rng: np.random.Generator, count: int) -> Array:
    draws: dict[str, Callable[[], Array]] = {
        "normal": lambda: rng.normal(0.0, 1.0, count),
        "heavy": lambda: rng.standard_t(3, count) / np.sqrt(3.0),
        "skewed": lambda: rng.exponential(1.0, count) - 1.0,
    }
    return draws[kind]()


def memory(steps: Worlds, worlds: int) -> Iterator[tuple[float, float]]:
    """Intervals as memories have them."""
    return ((item.low, item.high) for item in effects_by(steps.columns(), steps.world, worlds))


def independent(steps: Worlds, worlds: int) -> Iterator[tuple[float, float]]:
    """Intervals that take steps for independent."""
    for world in range(worlds):
        rows = steps.world == world
        gain, trust = steps.gain[rows], steps.trust[rows]
        mean = np.average(gain, weights=trust)
        count = trust.sum() ** 2 / (trust**2).sum()
        half = 1.96 * np.sqrt(np.average((gain - mean) ** 2, weights=trust) / count)
        yield float(mean - half), float(mean + half)


def bootstrap(steps: Worlds, worlds: int) -> Iterator[tuple[float, float]]:
    """Percentile intervals over resampled tasks."""
    for world in range(worlds):
        rows = steps.world == world
        task, trust = list(map(str, steps.task[rows])), steps.trust[rows]
        found = resampled(np.divide, by_task(task, list(trust * steps.gain[rows])), by_task(task, list(trust)))
        yield found.low, found.high


METHODS = {"memory": memory, "independent steps": independent, "bootstrap over tasks": bootstrap}


def coverage(scenario: Scenario, worlds: int, method: str, seed: int = 0) -> tuple[float, float]:
    """Share of intervals that hold the truth, and their mean width."""
    steps = drawn(scenario, worlds, np.random.default_rng(seed))
    found = np.array(list(METHODS[method](steps, worlds)))
    held = (found[:, 0] <= scenario.effect) & (scenario.effect <= found[:, 1])
    return float(held.mean()), float((found[:, 1] - found[:, 0]).mean())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=4000)
    parser.add_argument("--plain", type=int, default=500, help="worlds for the plainer ways, which are slow")
    arguments = parser.parse_args()
    rows = {}
    for name, scenario in SCENARIOS.items():
        sizes = {method: arguments.worlds if method == "memory" else arguments.plain for method in METHODS}
        found = {method: coverage(scenario, count, method) for method, count in sizes.items()}
        rows[name] = {"scenario": asdict(scenario)} | {
            method: {"coverage": round(share, 4), "width": round(width, 3)} for method, (share, width) in found.items()
        }
        print(name, {method: f"{share:.3f} ({width:.2f})" for method, (share, width) in found.items()}, flush=True)
    write_results("effects", {"worlds": sizes, "nominal": 0.95, "scenarios": rows})


if __name__ == "__main__":
    main()
