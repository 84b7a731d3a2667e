"""Coder and judge in the manner of CudaForge (arXiv 2511.01884).

As published: before each later candidate a judge reads the latest one and gives either one correction (from the error)
or one optimization (from a small set of hardware counters, of which it names three or four), never both, as strict
JSON; the coder carries it out. Otherwise here: the counters are the thirteen that ``--profile`` reads, not the paper's
24 (chosen there by correlation with run time), the coder also sees what was tried before, as in every arm, and the
parent is the search's, not always the latest. Without ``--profile`` the judge has times and the bound only. The paper
takes 10 rounds a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.arms.intents import json_of
from optimizer.arms.protocol import Arm, ArmContext, Choice, Said

CORRECTION, OPTIMIZATION = "judge_correction", "judge_optimization"
KEYS = {CORRECTION: ("issue", "why", "fix"), OPTIMIZATION: ("bottleneck", "counters", "change")}
"""What each kind of judgement holds; nothing else of an answer reaches the coder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeArm(Arm):
    """Asks a judge before every candidate but the first."""

    name: str = "hardware-feedback"

    def question(self, context: ArmContext) -> str:
        """One correction for what failed, one optimization for what is correct."""
        if context.said or context.mode == "first":
            return ""
        return CORRECTION if context.mode == "repair" else OPTIMIZATION

    def told(self, said: Sequence[Said]) -> str:
        """The judgement by its keys; nothing when the answer is not of that form."""
        found = json_of(said[0].text) if said else None
        if not isinstance(found, dict):
            return ""
        return "\n".join(f"{key}: {found[key]}" for key in KEYS[said[0].role] if found.get(key))

    def choose(self, context: ArmContext) -> Choice:
        """Leave the direction to the judge."""
        none = OPTIMIZATION in (said.role for said in context.said) and not self.told(context.said)
        return Choice(arm=self.name, gate="the judge said nothing that can be read: feedback only" if none else "")
