"""Plan, code, debug in the manner of STARK (arXiv 2510.16996).

As published: a planner writes instructions that are anchored to places in the code, a coder carries them out there and
nowhere else, a debugger mends what failed; each has a prompt and a view of its own (the planner sees all candidates and
the best of them, the coder what was tried, the debugger the failure); parents come from the tree, the best or, with
probability epsilon, any living leaf. Otherwise here: anchors are lines that the planner quotes instead of marks written
into the file, one model plays all roles at one temperature (published: 0.8 for plans, 0.1 for code), the debugger is
the repair of every arm, a branch is dead by the search's own rule, and epsilon is ours because the paper's is not known
here. The paper takes 30 attempts a task. Anchored instructions go well with ``--answers edits``.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.arms.protocol import Arm, ArmContext, Choice

EPSILON = 0.3
ROLE = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCodeArm(Arm):
    """Asks for a plan before each candidate that is no repair."""

    name: str = "plan-code-debug"

    def start(self, context: ArmContext) -> str:
        """The search's own parent, or any living leaf; the reference never again once a candidate is correct."""
        draw = context.draw("leaf")
        parents = {member.parent_id for member in context.members if member.score is not None}
        leaves = [one.step_id for one in context.members if one.alive and one.step_id not in parents]
        return draw.choice(leaves) if leaves and draw.random() < EPSILON else context.parent

    def question(self, context: ArmContext) -> str:
        """Ask the planner; a repair goes to the debugger at once."""
        return "" if context.mode == "repair" or context.has_said(ROLE) else ROLE

    def choose(self, context: ArmContext) -> Choice:
        """Leave the direction to the planner."""
        return Choice(arm=self.name)
