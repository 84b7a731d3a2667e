"""Python literals in log fields, read without evaluating anything and within fixed limits."""

from __future__ import annotations

import re
from typing import Any

from artifacts import syntax

MAX_LITERAL_CHARS = 1_000_000
MAX_NESTING = 40
_SIGN_RUN = re.compile(r"[-+~\s]{40,}[\d(]")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def literal(text: str) -> Any:
    """Return the dict, list, tuple, string, number, truth value or None that ``text`` spells.

    Raises:
        ValueError: not a literal, or larger or deeper than any honest log writes.
    """
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError(f"Python literal of {len(text)} characters, more than {MAX_LITERAL_CHARS}")
    if _depth(text) > MAX_NESTING or _SIGN_RUN.search(text):
        raise ValueError(f"Python literal nested deeper than {MAX_NESTING}")
    try:
        return syntax.literal(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as problem:
        raise ValueError(f"not a Python literal: {type(problem).__name__}") from problem


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings; brackets in strings do not count."""
    depth = deepest = 0
    for character in re.sub(r"[^\[\](){}]", "", _STRING.sub("", text)):
        depth += 1 if character in "[({" else -1
        deepest = max(deepest, depth)
    return deepest
