"""A world model of intents in the manner of K-Search (arXiv 2602.19128).

As published: a tree of intents that is edited in questions of its own (insert, rate, close), apart from the answers
that implement one; an intent starts from the program of the intent above it, is refined from its own best program, and
is closed after five tries in a row without improvement; difficulty up to 4 is preferred. Otherwise here: an intent that
failed to build is repaired as in every arm, the priority is what the model writes and not learnt, and a question that
edits the tree counts as a call, so that arms are compared at equal calls. The paper takes 120 evaluations a task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optimizer.arms.intents import edited, parse_edits, still_open
from optimizer.arms.protocol import Arm, ArmContext, Choice, Intent, Said
from optimizer.selection import SelectionSettings

HARD = 4
"""Difficulty up to which an intent is preferred, as published."""

ROLE = "intents"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldModelArm(Arm):
    """Works on the most promising open intent until it is closed, then has the tree edited."""

    settings: SelectionSettings
    name: str = "world-model"

    def question(self, context: ArmContext) -> str:
        """Have the tree edited where no intent is under way."""
        begun = any(intent.tries for intent in still_open(context.intents))
        return "" if begun or context.mode == "repair" or context.has_said(ROLE) else ROLE

    def heard(self, intents: tuple[Intent, ...], said: Said) -> tuple[Intent, ...]:
        """The tree after its edits."""
        return edited(intents, parse_edits(said.text))

    def told(self, said: object) -> str:
        """Nothing: whoever writes is shown the intent alone."""
        return ""

    def start(self, context: ArmContext) -> str:
        """The best program of the intent, else that of the intent above it."""
        intent = self.choose(context).intent
        above = None if intent is None else _numbered(context.intents, intent.under)
        programs = [one.program for one in (intent, above) if one is not None and one.program]
        return programs[0] if programs else context.parent

    def choose(self, context: ArmContext) -> Choice:
        """Choose by priority, at random for the exploration share; nothing while the tree is empty."""
        ordered = candidates(context.intents)
        fresh = [intent for intent in ordered if intent.label not in context.taken] or list(ordered)
        if not fresh:
            return Choice(arm=self.name, gate="the model has no open intent: feedback only")
        draw = context.draw("intent")
        explored = draw.random() < self.settings.explore
        chosen = draw.choice(fresh) if explored else fresh[0]
        first = 1 - self.settings.explore if chosen is fresh[0] else 0.0
        probability = self.settings.explore / len(fresh) + first
        return Choice(arm=self.name, intent=chosen, probability=probability, explored=explored)


def candidates(intents: Iterable[Intent]) -> tuple[Intent, ...]:
    """Open intents as they are to be taken: begun ones first, then those that are not too hard, then by priority."""
    return tuple(
        sorted(
            still_open(intents),
            key=lambda intent: (not intent.tries, intent.difficulty > HARD, -intent.priority, intent.number),
        )
    )


def _numbered(intents: Iterable[Intent], number: int | None) -> Intent | None:
    return next((intent for intent in intents if intent.number == number), None)
