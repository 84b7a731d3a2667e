"""Flat retrieval: the best strategies of the whole memory, without a direction in between."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.memory.attention import attend, expected_gain
from artifacts.memory.htg import Memory
from optimizer.applicability import inapplicable
from optimizer.arms.protocol import PARTS, Arm, ArmContext, Choice, uses
from optimizer.selection import SelectionSettings, usable_strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatArm(Arm):
    """Ranks strategies directly; the step is labelled with the direction of the best."""

    memory: Memory
    settings: SelectionSettings
    name: str = "flat"
    shows: frozenset[str] = PARTS

    def choose(self, context: ArmContext) -> Choice:
        """Offer the best strategies whose conditions hold."""
        attention = self.settings.attention
        every = len(self.memory.strategies)
        scores = attend(self.memory, context.overlay, context.state, attention).strategies(None, every)
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
