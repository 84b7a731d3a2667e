"""Arms without memory: feedback only, and independent attempts."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.arms.protocol import Arm, ArmContext, Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackArm(Arm):
    """Shows the model what was measured and nothing else; with ``restarts`` not even that (best of N)."""

    name: str = "feedback"

    def choose(self, context: ArmContext) -> Choice:
        """Choose nothing."""
        return Choice(arm=self.name)
