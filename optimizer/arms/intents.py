"""A task's list of ideas, which a model edits in answers of its own: new ideas, changed ratings, closed ones.

The list is a tree: an idea may build on the program that came of another. An idea is distinguished from its
implementations, and a bad first one does not end it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from optimizer.arms.protocol import Intent

WINDOW = 5
"""Tries in a row without improvement after which an idea is closed, as K-Search has it."""

MOST = 12
"""Open ideas that are kept; of more, the least promising are forgotten."""

MOST_EDITS = 24
MAX_CHARS = 400
MAX_BLOCK_CHARS = 20_000

_JSON_BLOCK = re.compile(r"^ {0,3}```[ \t]*json[ \t]*\n(.*?)^ {0,3}```", re.MULTILINE | re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentEdit:
    """What a model changes in its list: a new idea (``number`` None), or one that it updates or closes."""

    number: int | None = None
    text: str = ""
    priority: float | None = None
    difficulty: int | None = None
    under: int | None = None
    low: float | None = None
    high: float | None = None
    base: str = ""
    close: bool = False


def json_of(text: str) -> Any:
    """What the last JSON block of an answer holds; None when there is none that can be read."""
    blocks = _JSON_BLOCK.findall(text)
    if not blocks or len(blocks[-1]) > MAX_BLOCK_CHARS:
        return None
    try:
        return json.loads(blocks[-1])
    except (ValueError, RecursionError):
        return None


def parse_edits(text: str) -> tuple[IntentEdit, ...]:
    """Edits in the last JSON block of an answer; what cannot be read is left out.

    The block is a list of ``{"intent": TEXT, "priority": 0..1, "difficulty": 1..5, "under": N, "low": X, "high": Y,
    "base": STEP}`` (new, all but the text optional), ``{"number": N, "priority": ..., "difficulty": ...}`` (changed)
    and ``{"number": N, "close": true}``.
    """
    data = json_of(text)
    items = data.get("intents", []) if isinstance(data, dict) else data
    return tuple(_edits(items))[:MOST_EDITS] if isinstance(items, list) else ()


def edited(intents: tuple[Intent, ...], edits: Iterable[IntentEdit]) -> tuple[Intent, ...]:
    """``intents`` after ``edits``; what names no open idea, or repeats one, changes nothing."""
    for edit in edits:
        intents = _inserted(intents, edit) if edit.number is None else _updated(intents, edit)
    surplus = sorted(still_open(intents), key=lambda intent: -intent.priority)[MOST:]
    dropped = {intent.number for intent in surplus if not intent.tries}
    return tuple(intent for intent in intents if intent.number not in dropped)


def tried(
    intents: tuple[Intent, ...], number: int, *, program: str = "", gain: float | None = None
) -> tuple[Intent, ...]:
    """``intents`` after an implementation of one; the window closes it when it keeps failing.

    Args:
        program: step of the implementation if it improved; empty if it did not.
        gain: log2 gain that was measured of it.
    """
    return tuple(_after(intent, program, gain) if intent.number == number else intent for intent in intents)


def still_open(intents: Iterable[Intent]) -> list[Intent]:
    """Ideas that are worked on, in their order."""
    return [intent for intent in intents if not intent.closed]


def _edits(items: list[Any]) -> Iterator[IntentEdit]:
    for item in items:
        if not isinstance(item, dict):
            continue
        number, text, base = _whole(item.get("number")), item.get("intent"), item.get("base")
        if number is None and not (isinstance(text, str) and text.strip()):
            continue
        yield IntentEdit(
            number=number,
            text=text if isinstance(text, str) else "",
            priority=_real(item.get("priority")),
            difficulty=_whole(item.get("difficulty")),
            under=_whole(item.get("under")),
            low=_real(item.get("low")),
            high=_real(item.get("high")),
            base=base if isinstance(base, str) else "",
            close=item.get("close") is True,
        )


def _real(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    found = _real(value)
    return None if found is None else int(found)


def _inserted(intents: tuple[Intent, ...], edit: IntentEdit) -> tuple[Intent, ...]:
    text = " ".join(edit.text.split())[:MAX_CHARS]
    if not text or any(intent.text == text for intent in intents):
        return intents
    number = max((intent.number for intent in intents), default=0) + 1
    under = edit.under if any(intent.number == edit.under for intent in intents) else None
    fresh = Intent(number=number, text=text, under=under, low=edit.low, high=edit.high, base=edit.base)
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


def _after(intent: Intent, program: str, gain: float | None) -> Intent:
    fruitless = 0 if program else intent.fruitless + 1
    closed = intent.closed or (f"{WINDOW} tries without improvement" if fruitless >= WINDOW else "")
    known = [value for value in (intent.gain, gain) if value is not None]
    return replace(
        intent,
        tries=intent.tries + 1,
        fruitless=fruitless,
        closed=closed,
        program=program or intent.program,
        gain=max(known, default=None),
    )
