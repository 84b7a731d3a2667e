"""The ceiling of a simulation: an arm that reads in the world itself which direction gains most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.arms import ArmContext, Choice
from optimizer.simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleArm:
    """Chooses by the world's own mean gain of each direction near the state, shrunken towards that of any draw.

    No memory could know as much. How far it is ahead of undirected steps says what a simulation is able to show.
    """

    world: World
    task_id: str
    shrink: float = 0.5
    name: str = "oracle"
    memory: None = None
    restarts: bool = False
    fixes: bool = False
    plans: bool = False
    learns: bool = False

    def choose(self, context: ArmContext) -> Choice:
        """Choose the direction with the highest mean."""
        means = self.world.means(context.state, self.task_id, self.shrink)
        if not means:
            return Choice(arm=self.name, gate="the world knows no direction")
        names = sorted(means)
        best = names[int(np.argmax([means[name] for name in names]))]
        return Choice(arm=self.name, direction=best, probability=1.0)
