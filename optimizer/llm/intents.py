"""The edits of its own plan that a model sends beside its code: one JSON block, read tolerantly."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from optimizer.arms.intents import IntentEdit

_JSON_BLOCK = re.compile(r"^ {0,3}```[ \t]*json[ \t]*\n(.*?)^ {0,3}```", re.MULTILINE | re.DOTALL | re.IGNORECASE)
MOST_EDITS = 24
MAX_BLOCK_CHARS = 20_000


def parse_intents(text: str) -> tuple[IntentEdit, ...]:
    """Edits in the last JSON block of an answer; what cannot be read is left out, because the code is what counts.

    The block is a list of ``{"intent": TEXT, "priority": 0..1, "difficulty": 1..5}`` (new),
    ``{"number": N, "priority": ..., "difficulty": ...}`` (changed) and ``{"number": N, "close": true}``.
    """
    blocks = _JSON_BLOCK.findall(text)
    if not blocks or len(blocks[-1]) > MAX_BLOCK_CHARS:
        return ()
    try:
        data = json.loads(blocks[-1])
    except (ValueError, RecursionError):
        return ()
    items = data.get("intents", []) if isinstance(data, dict) else data
    return tuple(_edits(items))[:MOST_EDITS] if isinstance(items, list) else ()


def _edits(items: list[Any]) -> Iterator[IntentEdit]:
    for item in items:
        if not isinstance(item, dict):
            continue
        number, text = _whole(item.get("number")), item.get("intent")
        if number is None and not (isinstance(text, str) and text.strip()):
            continue
        yield IntentEdit(
            number=number,
            text=text if isinstance(text, str) else "",
            priority=_real(item.get("priority")),
            difficulty=_whole(item.get("difficulty")),
            close=item.get("close") is True,
        )


def _real(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    found = _real(value)
    return None if found is None else int(found)
