"""Texts cut where a sentence ends, for logs that cut them where a field was full."""

from __future__ import annotations

import re

SENTENCE_END = re.compile(
    r"(?:(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?][)\]\"'`]*(?=\s|$)|[\u3002\uff01\uff1f])"
)
"""Full stops, also full-width ones, that are not part of a number, a name or an abbreviation."""


def whole_sentences(text: str) -> str:
    """``text`` up to its last sentence end; all of it when it has none, as a heading or a short phrase has."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]].strip() if ends else text.strip()
