"""Which tasks of a suite get the steps that may move between them.

Every task gets two thirds of its share. What is left goes, a wave at a time, to the tasks that improved last: a task
that has not gained for long seldom does so again, whatever the state of its best candidate promises. Chosen in the
simulator, see docs/simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

SURE = 2 / 3
"""Part of its T steps that a task gets in any case."""

MOST = 2
"""Times T that a task gets at most."""

WAVES = 3
"""A wave is one step for a third of the tasks that are open, so that a gain counts before all steps are given away."""


class Claimant(Protocol):
    """What counts when steps are given away."""

    @property
    def steps_done(self) -> int:
        """Steps that are complete."""
        ...

    @property
    def fruitless(self) -> int:
        """Steps since the last that improved; 0 as long as there is no correct candidate."""
        ...


C = TypeVar("C", bound=Claimant)


def sure_steps(steps: int) -> int:
    """Steps that every task takes when ``steps`` is its share."""
    return math.ceil(steps * SURE)


def next_wave(open_tasks: Sequence[C], left: int, steps: int) -> list[C]:
    """The tasks that take one more step; none when no step is ``left`` or nobody may have it.

    Args:
        open_tasks: those for which a further step is worth its cost, in the order of the run.
        left: steps of the whole suite that are not used yet.
        steps: share of one task.
    """
    able = [task for task in open_tasks if task.steps_done < MOST * steps]
    able.sort(key=lambda task: (task.fruitless, task.steps_done))
    return able[: min(left, math.ceil(len(able) / WAVES))]
