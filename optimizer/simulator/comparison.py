"""Arms side by side over all tasks of a memory, compared task by task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from artifacts.memory.htg import Memory
from optimizer.selection import SelectionSettings
from optimizer.simulator.arena import Arena, Contender
from optimizer.simulator.episode import Episode
from optimizer.simulator.world import WorldSettings

DRAWS = 2000
"""Bootstrap samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """What is simulated.

    Attributes:
        arms: names; the first is what the others are compared with.
        steps: steps of a run; ``runs``: runs of each task and arm.
        folds: groups of tasks; an arm's memory lacks the whole group of the task that it works on.
        seed: of everything that is drawn.
    """

    arms: tuple[str, ...] = ("feedback", "htam")
    steps: int = 6
    runs: int = 10
    folds: int = 5
    seed: int = 0
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    world: WorldSettings = field(default_factory=WorldSettings)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.runs < 1 or self.folds < 2:
            raise ValueError("steps and runs count from 1, folds from 2")
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise ValueError(f"arms must be named once each, got {', '.join(self.arms) or 'none'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over tasks with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm reached.

    Attributes:
        progress: mean log2 gain over the start after the last step.
        by_step: the same mean after each step.
        difference: paired difference in ``progress`` to the first arm; None for that arm itself.
        sooner: paired difference of the mean over all steps, which also sees who gets there first.
        better: share of tasks on which it is ahead of the first arm.
        directed, followed, correct: means of the same fields of :class:`optimizer.simulator.episode.Episode`.
    """

    arm: str
    progress: Interval
    by_step: tuple[float, ...]
    difference: Interval | None
    sooner: Interval | None
    better: float
    directed: float
    followed: float
    correct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Arms in the order of the settings, over ``tasks`` tasks and ``episodes`` simulated runs in all."""

    memory: str
    arms: tuple[ArmResult, ...]
    tasks: int
    transitions: int
    episodes: int


Played = dict[str, dict[str, list[Episode]]]
"""Label of a contender → task → its episodes."""

Progress = Callable[[int, int], None]


def compare(memory: Memory, settings: SimulationSettings, progress: Progress = lambda done, all_of: None) -> Comparison:
    """Simulate every arm on every task.

    Args:
        memory: all the experience there is; divided anew for each fold.
        progress: told of tasks done and tasks in all, each arm counting its own.

    Raises:
        BadInputError: an unknown arm, or a memory with too few tasks to divide.
    """
    arena = Arena(memory, folds=settings.folds, world=settings.world)
    contenders = [Contender(label=arm, arm=arm, selection=settings.selection) for arm in settings.arms]
    total, done = len(arena.tasks) * len(contenders), itertools.count(1)
    played: Played = {}
    for contender in contenders:
        found = played.setdefault(contender.label, {})
        for task, episodes in arena.play(contender, steps=settings.steps, runs=settings.runs, seed=settings.seed):
            found[task] = episodes
            progress(next(done), total)
    return Comparison(
        memory=memory.reference,
        arms=results_of(played, settings.seed),
        tasks=len(arena.tasks),
        transitions=len(memory),
        episodes=total * settings.runs,
    )


def results_of(played: Played, seed: int = 0) -> tuple[ArmResult, ...]:
    """Figures of contenders that played the same tasks; the first is what the others are compared with."""
    first = next(iter(played.values()))
    tasks = sorted(first)
    against = np.array([_mean_progress(first[task]) for task in tasks])
    found = []
    for label, episodes in played.items():
        reached = np.array([_mean_progress(episodes[task]) for task in tasks])
        found.append(_result(label, reached, None if episodes is first else against, episodes, seed))
    return tuple(found)


def ahead_at_the_end(
    one: Mapping[str, Sequence[Episode]], other: Mapping[str, Sequence[Episode]], seed: int = 0
) -> Interval:
    """How far ``one`` is ahead of ``other`` in log2 after all steps, paired by task, however many each took."""
    reached = [[_end(played[task]) for task in sorted(one)] for played in (one, other)]
    return interval(np.array(reached[0]) - np.array(reached[1]), seed)


def _end(episodes: Sequence[Episode]) -> float:
    return sum(episode.progress[-1] for episode in episodes) / len(episodes)


def _mean_progress(episodes: Sequence[Episode]) -> npt.NDArray[np.float64]:
    mean: npt.NDArray[np.float64] = np.array([episode.progress for episode in episodes]).mean(axis=0)
    return mean


def _result(
    label: str,
    reached: npt.NDArray[np.float64],
    against: npt.NDArray[np.float64] | None,
    episodes: Mapping[str, list[Episode]],
    seed: int,
) -> ArmResult:
    last = reached[:, -1]
    ahead = np.zeros(len(last)) if against is None else last - against[:, -1]
    every = [episode for found in episodes.values() for episode in found]
    directed = [episode for episode in every if episode.directed]
    return ArmResult(
        arm=label,
        progress=interval(last, seed),
        by_step=tuple(float(value) for value in reached.mean(axis=0)),
        difference=None if against is None else interval(ahead, seed),
        sooner=None if against is None else interval((reached - against).mean(axis=1), seed),
        better=float((ahead > 0).mean()),
        directed=_mean([episode.directed for episode in every]),
        followed=_mean([episode.followed for episode in directed]),
        correct=_mean([episode.correct for episode in every]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def interval(values: npt.NDArray[np.float64], seed: int) -> Interval:
    """Mean over tasks; tasks are what is drawn, because runs of one task share its transitions."""
    draws = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return Interval(value=float(values.mean()), low=float(low), high=float(high))
