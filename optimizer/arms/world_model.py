"""The model's own plan in the manner of K-Search: intents with priorities, no memory."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from optimizer.arms.intents import candidates
from optimizer.arms.protocol import ArmContext, Choice
from optimizer.selection import SelectionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldModelArm:
    """Takes the most promising open intent of the list that the model edits with each answer.

    Published: a tree of programs and intents, edited in calls of its own. Here: a list, edited in the answers that
    carry the candidates, so that arms are compared at the same number of calls; parents come from the population, as
    for every arm.
    """

    settings: SelectionSettings
    name: str = "world-model"
    memory: None = None
    restarts: bool = False
    fixes: bool = False
    plans: bool = True
    learns: bool = False

    def choose(self, context: ArmContext) -> Choice:
        """Choose by priority, at random for the exploration share; nothing while the list is empty."""
        ordered = candidates(context.intents)
        fresh = [intent for intent in ordered if f"intent {intent.number}" not in context.taken] or list(ordered)
        if not fresh:
            return Choice(arm=self.name, gate="the model has no open intent: feedback only")
        draw = random.Random(hashlib.sha256(context.seed.encode()).digest())
        explored = draw.random() < self.settings.explore
        chosen = draw.choice(fresh) if explored else fresh[0]
        first = 1 - self.settings.explore if chosen is fresh[0] else 0.0
        probability = self.settings.explore / len(fresh) + first
        return Choice(arm=self.name, intent=chosen, probability=probability, explored=explored)
