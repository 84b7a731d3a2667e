"""Where contenders play: tasks divided into groups, each with its world and a memory that has forgotten the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from optimizer.arms import Arm, make_arm
from optimizer.selection import SelectionSettings
from optimizer.simulator.episode import Episode, play
from optimizer.simulator.oracle import OracleArm
from optimizer.simulator.suite import play_suite, suites_of
from optimizer.simulator.world import World, WorldSettings, split

SUITE = 13
"""Tasks of a simulated suite."""

Known = Callable[[Sequence[str]], Memory]
"""From a group of tasks to what the arms know while they play it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An arm under some settings, by the label that results carry."""

    label: str
    arm: str
    selection: SelectionSettings = field(default_factory=SelectionSettings)


class Arena:
    """The tasks of one memory, ready to be played.

    Attributes:
        grounds: each group's world, and what arms know that play in it.
        tasks: all that can be played.

    Args:
        memory: all the experience there is.
        folds: groups of tasks; an arm's memory lacks the whole group of the task that it works on.
        world: how outcomes are drawn.
        known: what arms know that play a group; ``memory`` without the group's operators, in all suites, when None.

    Raises:
        BadInputError: too few tasks to divide.
    """

    def __init__(self, memory: Memory, *, folds: int, world: WorldSettings, known: Known | None = None) -> None:
        groups = split(memory.columns.task.names, folds)
        knows = known or (lambda group: memory.filter(exclude_tasks=memory.same_operators(group)))
        self.grounds = [(World(_only(memory, group), world), knows(group)) for group in groups]
        self.tasks = tuple(task for ground, _ in self.grounds for task in ground.tasks())
        if len(self.tasks) < 2 or len(groups) < 2:
            raise BadInputError(
                f"{memory.reference} holds {len(self.tasks)} tasks with {world.least} or more measured transitions",
                "a simulation needs at least two; build the memory from more logs",
            )

    def play(
        self, contender: Contender, *, steps: int, runs: int, seed: int, tasks: frozenset[str] | None = None
    ) -> Iterator[tuple[str, list[Episode]]]:
        """Yield each task (all, or those in ``tasks``) with its episodes; equal seeds give equal luck."""
        for world, known in self.grounds:
            names = [task for task in world.tasks() if tasks is None or task in tasks]
            arm = make_arm(contender.arm, known, contender.selection)
            for task in names:
                yield task, _episodes(world, task, arm, steps, [f"{seed}/{run}" for run in range(runs)])

    def suites(
        self, contender: Contender, *, steps: int, runs: int, seed: int, tasks: frozenset[str], moving: bool
    ) -> dict[str, list[Episode]]:
        """Play ``tasks`` in suites of about :data:`SUITE`, each task's episodes in the order of the runs."""
        found: dict[str, list[Episode]] = {}
        for world, known in self.grounds:
            arm = make_arm(contender.arm, known, contender.selection)
            for names in suites_of([task for task in world.tasks() if task in tasks], SUITE, seed):
                for run in range(runs):
                    played = play_suite(world, names, arm, steps, f"{seed}/{run}", moving=moving)
                    for task, episode in played.items():
                        found.setdefault(task, []).append(episode)
        return found

    def ceiling(
        self, *, steps: int, runs: int, seed: int, tasks: frozenset[str] | None = None
    ) -> Iterator[tuple[str, list[Episode]]]:
        """As :meth:`play`, by an arm that knows the world."""
        for world, _ in self.grounds:
            for task in world.tasks():
                if tasks is None or task in tasks:
                    arm = OracleArm(world=world, task_id=task)
                    yield task, _episodes(world, task, arm, steps, [f"{seed}/{run}" for run in range(runs)])


def _episodes(world: World, task: str, arm: Arm, steps: int, seeds: Sequence[str]) -> list[Episode]:
    return [play(world, task, arm, steps, seed) for seed in seeds]


def _only(memory: Memory, tasks: Sequence[str]) -> Memory:
    others = set(memory.columns.task.names) - set(tasks)
    return memory.filter(exclude_tasks=others)
