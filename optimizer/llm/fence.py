"""Text of others as data in a prompt: cleaned, limited in length and fenced so that it cannot get out."""

from __future__ import annotations

import hashlib
import unicodedata

MARK_DIGITS = 16
"""Hex digits of a fence's number; a text would have to contain its own hash to close it."""


def fenced(text: str, label: str, limit: int) -> str:
    """Return ``text`` between two marks whose number depends on the text, at most ``limit`` characters of it.

    Args:
        text: anything, from anybody.
        label: what it is, in our words; never taken from data.
        limit: characters kept; what is left out is counted in its place.
    """
    content = clean(shorten(text, limit))
    mark = _mark(label + "\0" + content)
    while mark in content:
        mark = _mark(mark + content)
    return f"<<DATA {mark} {label}\n{content}\nDATA {mark}>>"


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:MARK_DIGITS]


class _Kept(dict[int, str | None]):
    """Translation table that is filled as characters are met: None for those that a reader cannot see."""

    def __missing__(self, code: int) -> str | None:
        char = chr(code)
        hidden = char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn")
        self[code] = None if hidden else char
        return self[code]


_KEPT = _Kept()


def clean(text: str) -> str:
    """Return ``text`` without control, direction and zero-width characters, and with plain line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_KEPT).strip("\n")


def shorten(text: str, limit: int) -> str:
    """Return ``text``, or its beginning and end with the number of characters left out between them."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def brief(text: str, limit: int) -> str:
    """Return ``text``, or its beginning: up to a sentence where one ends in the second half of ``limit`` characters."""
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(". ")[0]
    return f"{whole}." if len(whole) > limit // 2 else f"{text[: limit - 1]}…"
