"""Flat retrieval: the best strategies of the whole memory, without a direction in between."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.memory.attention import expected_gain, score_strategies
from artifacts.memory.htg import Memory
from optimizer.applicability import inapplicable
from optimizer.arms.protocol import ArmContext, Choice, uses
from optimizer.selection import SelectionSettings, usable_strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatArm:
    """Ranks strategies directly; the step is labelled with the direction of the best."""

    memory: Memory
    settings: SelectionSettings
    name: str = "flat"
    restarts: bool = False
    plans: bool = False
    learns: bool = True
    fixes: bool = True

    def choose(self, context: ArmContext) -> Choice:
        """Offer the best strategies whose conditions hold."""
        attention = self.settings.attention
        every = len(self.memory.strategies)
        scores = score_strategies(self.memory, context.overlay, context.state, None, every, attention)
        sensible = [score for score in scores if not inapplicable(score.strategy.direction_id, context.state)]
        found = usable_strategies(sensible, self.settings, context.state)
        if not found:
            return Choice(arm=self.name, gate="no strategy has conditions that hold and enough evidence: no direction")
        return Choice(
            arm=self.name,
            direction=found[0].strategy.direction_id,
            strategies=uses(found),
            probability=1.0,
            expected=expected_gain(self.memory, context.state),
        )
