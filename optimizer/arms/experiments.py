"""Designed experiments in the manner of GPU Kernel Scientist (arXiv 2506.20807).

As published: a selector names the candidate to build on, a designer writes five experiments with the least and the
largest gain that it predicts, three are run (the newest, the one with the highest best case, the one with the highest
worst case), a writer implements each; there is no profile. Otherwise here: the selector is not asked for a second
candidate to borrow from, the ten avenues that precede the five experiments are not written out, and the designer is
shown how its earlier predictions came out (``predicted`` beside ``measured``). The paper tunes one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optimizer.arms.intents import edited, json_of, parse_edits
from optimizer.arms.protocol import Arm, ArmContext, Choice, Intent, Said

SELECT, DESIGN = "select", "design"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentsArm(Arm):
    """Runs three designed experiments, one a candidate, then has new ones designed."""

    name: str = "experiments"

    def question(self, context: ArmContext) -> str:
        """Selector and designer, while no experiment waits to be run; nothing is selected from one candidate."""
        if context.mode == "repair" or waiting(context.intents):
            return ""
        several = sum(one.score is not None for one in context.members) > 1
        wanted = (SELECT, DESIGN) if several else (DESIGN,)
        return next((role for role in wanted if not context.has_said(role)), "")

    def heard(self, intents: tuple[Intent, ...], said: Said) -> tuple[Intent, ...]:
        """The experiments, of which three stay open."""
        if said.role != DESIGN:
            return intents
        found = edited(intents, (edit for edit in parse_edits(said.text) if edit.number is None))
        run = {intent.number for intent in three(waiting(found))}
        known = {intent.number for intent in intents}
        return tuple(
            intent if intent.number in run | known else replace(intent, closed="designed, not run") for intent in found
        )

    def told(self, said: object) -> str:
        """Nothing: whoever writes is shown the experiment alone."""
        return ""

    def start(self, context: ArmContext) -> str:
        """What the selector named, else the base of the experiment, where it is a correct candidate."""
        bases = [_selected(said) for said in context.said if said.role == SELECT]
        bases += [intent.base for intent in waiting(context.intents)[:1]]
        correct = {one.step_id for one in context.members if one.score is not None}
        return next((base for base in bases if base in correct), context.parent)

    def choose(self, context: ArmContext) -> Choice:
        """Choose the experiments in their order."""
        open_ = waiting(context.intents)
        fresh = [intent for intent in open_ if intent.label not in context.taken]
        if not fresh:
            return Choice(arm=self.name, gate="no experiment was designed: feedback only")
        return Choice(arm=self.name, intent=fresh[0], probability=1.0)


def waiting(intents: Sequence[Intent]) -> list[Intent]:
    """Experiments that are to be run; each is run once."""
    return [intent for intent in intents if not intent.closed and not intent.tries]


def three(experiments: Sequence[Intent]) -> list[Intent]:
    """Of those designed the newest in kind, the one with the best best case, and the one with the best worst case."""
    left = list(experiments)
    chosen: list[Intent] = []
    for worth in (_novelty, _high, _low):
        if left:
            chosen.append(max(left, key=worth))
            left.remove(chosen[-1])
    return chosen


def _novelty(intent: Intent) -> float:
    return intent.priority


def _high(intent: Intent) -> float:
    return intent.high or 0.0


def _low(intent: Intent) -> float:
    return intent.low or 0.0


def _selected(said: Said) -> str:
    found = json_of(said.text)
    return str(found.get("base", "")) if isinstance(found, dict) else ""
