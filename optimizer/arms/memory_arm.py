"""Arms that choose a direction by the memory's score and then strategies under it."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.memory.attention import attend, expected_gain
from artifacts.memory.htg import Memory
from optimizer.applicability import with_inapplicable_masked
from optimizer.arms.protocol import MOVES, PARTS, STRATEGIES, Arm, ArmContext, Choice, StrategyUse, uses
from optimizer.selection import SelectionSettings, pick_direction, usable_moves, usable_strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryArm(Arm):
    """State → direction → local strategies; the ablations switch parts off.

    Attributes:
        shows: nothing gives the direction's name only.
        learns: False is the frozen ablation.
    """

    memory: Memory
    settings: SelectionSettings
    shows: frozenset[str] = PARTS
    learns: bool = True

    def choose(self, context: ArmContext) -> Choice:
        """Choose by upper confidence bound over directions, behind the confidence gate."""
        overlay = context.overlay if self.learns else ()
        view = attend(self.memory, overlay, context.state, self.settings.attention)
        scores = with_inapplicable_masked(view.directions(), context.state)
        expected = expected_gain(self.memory, context.state)
        picked = pick_direction(scores, self.settings, context.seed, context.taken, expected)
        strategies: tuple[StrategyUse, ...] = ()
        if picked.direction and STRATEGIES in self.shows:
            found = view.strategies(picked.direction, len(self.memory.strategies))
            strategies = uses(usable_strategies(found, self.settings, context.state))
        return Choice(
            arm=self.name,
            direction=picked.direction,
            strategies=strategies,
            moves=usable_moves(self.memory.edges, self.settings, context.state) if MOVES in self.shows else (),
            probability=picked.probability,
            explored=picked.explored,
            gate=picked.gate,
            scores=scores,
            expected=expected,
        )
