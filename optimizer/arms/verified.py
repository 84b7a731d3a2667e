"""Evolution with soft verifiers in the manner of robust-kbench (arXiv 2509.14279) and KernelEvolve (arXiv 2512.23236).

As published: parents are drawn by fitness, and a language model gives verdicts on whether a proposal compiles, keeps to
its memory and keeps its numerics before any of it reaches the hardware. Otherwise here: a verdict against a proposal
gives its author one chance to answer again instead of dropping it, verifiers have no prompts of their own fitting, one
model writes all proposals (the ensemble is ``--candidates``), the search ends by the rules of every arm, and hardware
notes are not retrieved. Three verdicts a candidate are three calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.arms.protocol import Arm, ArmContext, Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedArm(Arm):
    """Draws parents by their speed and has each candidate judged before it is measured."""

    name: str = "verified-evolution"
    reviews: tuple[str, ...] = ("verify_compile", "verify_memory", "verify_numerics")

    def start(self, context: ArmContext) -> str:
        """A living candidate, with a probability that is proportional to its speed."""
        alive = [member for member in context.members if member.alive]
        weights = [2 ** (member.score or 0.0) for member in alive]
        return context.draw("parent").choices(alive, weights)[0].step_id if alive else context.parent

    def choose(self, context: ArmContext) -> Choice:
        """Leave the direction to the model."""
        return Choice(arm=self.name)
