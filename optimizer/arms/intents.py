"""Intents that a model keeps for itself: ideas with a priority, worked on one at a time, edited by the model.

After K-Search (arXiv 2602.19128): an idea is told apart from its implementations, and a bad first one does not end it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

WINDOW = 5
"""Tries in a row without improvement after which an intent is closed, as published."""

HARD = 4
"""Difficulty up to which an intent is preferred, as published."""

MOST = 12
"""Open intents that are kept; of more, the least promising are forgotten."""

MAX_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One idea.

    Attributes:
        number: by which edits name it, from 1.
        priority: what the model expects of it, 0..1; ``difficulty``: 1 (easy) to 5.
        tries, fruitless: implementations so far, and those since the last that was faster.
        closed: why it is not worked on any more; empty while it is open.
    """

    number: int
    text: str
    priority: float = 0.5
    difficulty: int = 3
    tries: int = 0
    fruitless: int = 0
    closed: str = ""

    def __post_init__(self) -> None:
        if self.number < 1 or not self.text:
            raise ValueError("an intent has a number from 1 and a text")
        if not 0 <= self.priority <= 1 or not 1 <= self.difficulty <= 5:
            raise ValueError(f"priority lies in 0..1 and difficulty in 1..5, got {self.priority} and {self.difficulty}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentEdit:
    """What a model changes in its list: a new intent (``number`` None), or one that it updates or closes."""

    number: int | None = None
    text: str = ""
    priority: float | None = None
    difficulty: int | None = None
    close: bool = False


def edited(intents: tuple[Intent, ...], edits: Iterable[IntentEdit]) -> tuple[Intent, ...]:
    """``intents`` after ``edits``; what names no open intent, or repeats one, changes nothing."""
    for edit in edits:
        intents = _inserted(intents, edit) if edit.number is None else _updated(intents, edit)
    surplus = sorted(_open(intents), key=lambda intent: -intent.priority)[MOST:]
    dropped = {intent.number for intent in surplus if not intent.tries}
    return tuple(intent for intent in intents if intent.number not in dropped)


def tried(intents: tuple[Intent, ...], number: int, *, improved: bool) -> tuple[Intent, ...]:
    """``intents`` after an implementation of one; the window closes it when it keeps failing."""
    return tuple(_after(intent, improved) if intent.number == number else intent for intent in intents)


def candidates(intents: Iterable[Intent]) -> tuple[Intent, ...]:
    """Open intents as they are to be taken: begun ones first, then those that are not too hard, then by priority."""
    return tuple(
        sorted(
            _open(intents),
            key=lambda intent: (not intent.tries, intent.difficulty > HARD, -intent.priority, intent.number),
        )
    )


def _open(intents: Iterable[Intent]) -> list[Intent]:
    return [intent for intent in intents if not intent.closed]


def _inserted(intents: tuple[Intent, ...], edit: IntentEdit) -> tuple[Intent, ...]:
    text = " ".join(edit.text.split())[:MAX_CHARS]
    if not text or any(intent.text == text for intent in intents):
        return intents
    number = max((intent.number for intent in intents), default=0) + 1
    fresh = Intent(number=number, text=text)
    return (*intents, _rated(fresh, edit))


def _updated(intents: tuple[Intent, ...], edit: IntentEdit) -> tuple[Intent, ...]:
    def change(intent: Intent) -> Intent:
        if intent.number != edit.number or intent.closed:
            return intent
        return _rated(replace(intent, closed="closed by the model" if edit.close else ""), edit)

    return tuple(change(intent) for intent in intents)


def _rated(intent: Intent, edit: IntentEdit) -> Intent:
    priority = intent.priority if edit.priority is None else min(max(edit.priority, 0.0), 1.0)
    difficulty = intent.difficulty if edit.difficulty is None else min(max(edit.difficulty, 1), 5)
    return replace(intent, priority=priority, difficulty=difficulty)


def _after(intent: Intent, improved: bool) -> Intent:
    fruitless = 0 if improved else intent.fruitless + 1
    closed = intent.closed or (f"{WINDOW} tries without improvement" if fruitless >= WINDOW else "")
    return replace(intent, tries=intent.tries + 1, fruitless=fruitless, closed=closed)
