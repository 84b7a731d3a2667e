"""Arms without memory: feedback only, and independent attempts."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.arms.protocol import ArmContext, Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackArm:
    """Shows the model what was measured and nothing else; with ``restarts`` not even that (best of N)."""

    name: str = "feedback"
    memory: None = None
    restarts: bool = False
    plans: bool = False
    learns: bool = False
    fixes: bool = False

    def choose(self, context: ArmContext) -> Choice:
        """Choose nothing."""
        return Choice(arm=self.name)
