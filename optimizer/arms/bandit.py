"""A bandit over (behaviour, direction) in the manner of KernelBand: online statistics, saturation mask, UCB."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass

from artifacts.memory.attention import saturation
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.state import State
from optimizer.applicability import inapplicable
from optimizer.arms.protocol import ArmContext, Choice
from optimizer.selection import SelectionSettings

UCB = 2.0
"""Weight of the exploration bonus in the published configuration."""

_Behaviour = tuple[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditArm:
    """Knows the directions of a memory and their resources, none of its experience.

    The published method clusters kernels by profile features; with a handful of steps a task there is
    nothing to cluster, so behaviour is a cell here: bottleneck, and whether half of the bound is reached.
    """

    memory: Memory
    settings: SelectionSettings
    name: str = "bandit"
    restarts: bool = False
    plans: bool = False
    learns: bool = True
    fixes: bool = False

    def choose(self, context: ArmContext) -> Choice:
        """Choose the direction with the highest bound; untried ones first, in random order."""
        allowed = [
            direction.direction_id
            for direction in self.memory.directions
            if not saturation(direction, context.state, self.settings.attention)
            and not inapplicable(direction.direction_id, context.state)
        ]
        fresh = [name for name in allowed if name not in context.taken] or allowed
        if not fresh:
            return Choice(arm=self.name, gate="every direction is masked")
        rewards = _rewards(context)
        total = max(sum(len(found) for found in rewards.values()), 1)
        values = {name: _bound(rewards.get(name, []), total) for name in fresh}
        best = [name for name in fresh if values[name] == max(values.values())]
        draw = random.Random(hashlib.sha256(context.seed.encode()).digest())
        return Choice(arm=self.name, direction=draw.choice(best), probability=1 / len(best))


def _bound(rewards: list[float], total: int) -> float:
    if not rewards:
        return math.inf
    return sum(rewards) / len(rewards) + UCB * math.sqrt(math.log(total) / len(rewards))


def _rewards(context: ArmContext) -> dict[str, list[float]]:
    """Share of the time saved by past steps in the same behaviour, by direction; failures saved nothing."""
    found: dict[str, list[float]] = {}
    for transition in context.overlay:
        if transition.direction_id and _behaviour(transition.state) == _behaviour(context.state):
            found.setdefault(transition.direction_id, []).append(_saved(transition))
    return found


def _saved(transition: Transition) -> float:
    return 0.0 if transition.reward is None else max(0.0, 1 - 2**-transition.reward)


def _behaviour(state: State) -> _Behaviour:
    return state.bottleneck.value, (state.fraction_of_bound or 0.0) >= 0.5
