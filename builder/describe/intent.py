"""What a plan means to do, cut out of what it says around that."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from builder.describe.sentences import SENTENCE_END

LONGEST = 600
"""Characters kept of an intent; encoders read no more than that."""

LEAST = 40
"""Characters that make a sentence worth standing alone."""

_TAKEN = 3
"""Sentences taken of a long plan."""

_CLAUSE_END = re.compile(r"[;:,\u3001\uff0c\uff1b](?=\s|[\u3400-\u9fff])")
_OUTLINE = re.compile(r"\*{0,2}Selected (?:Outline|Plan|Approach)s?:?\*{0,2}:?\s*(.+)", re.IGNORECASE)
_OBJECTIVE = re.compile(r"\*{0,2}Objective:?\*{0,2}:?\s*(.+)", re.IGNORECASE)
_HISTORY = re.compile(r"\n\s*(?:Optimization History|Previous Optimization Attempts)\s*:", re.IGNORECASE)
_LABEL = re.compile(
    r"^(?:\W*(?:Plan|Outline|Option|Strategy|Step|Approach|Idea)\s*\w{0,2}\s*(?:\([^)]*\))?\s*[:.—–-]+\s*)+", re.I
)
_LEAD = re.compile(
    r"^(?:\W*(?:optimi[sz]ation\s+)?(?:goal|objective|strategy|directive|next step|plan)\s*:\s*)+", re.IGNORECASE
)
_STOPS = "\u3002\uff01\uff1f\uff1b"  # full-width . ! ? ;
_SENTENCE = re.compile(rf"(?<=[.!?{_STOPS}])\s+|\n+|(?<=[{_STOPS}])")
_HASHES = re.compile(r"`?\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b`?")
_VERBS = (
    r"accelerate|add|adjust|adopt|align|allow|append|apply|assign|avoid|batch|block|bound|"
    r"break|bypass|cache|change|coalesce|collapse|combine|compute|convert|correct|cut|decouple|"
    r"decrease|define|dispatch|distribute|double|drop|eliminate|employ|enable|enlarge|ensure|"
    r"exploit|extend|fix|flatten|fold|fuse|halve|hide|hoist|implement|improve|increase|inline|"
    r"interleave|introduce|keep|launch|leverage|limit|load|lower|map|mark|maximize|merge|"
    r"minimize|modify|move|optimize|overlap|pack|pad|parallelize|partition|perform|permute|"
    r"pipeline|precompute|prefetch|process|promote|rebuild|recompile|redesign|reduce|refactor|"
    r"register|reload|remove|reorder|reorganize|replace|reshape|restructure|reuse|reverse|"
    r"review|rewrite|schedule|select|set|share|shrink|simplify|skip|specialize|split|stage|"
    r"stream|swap|switch|tile|transform|transpose|tune|unroll|update|use|utilize|vectorize|"
    r"verify|widen"
)
_IMPERATIVE = re.compile(rf"^\W*(?:{_VERBS})\b", re.IGNORECASE)


@functools.lru_cache(maxsize=1024)
def intent(plan: str) -> str:
    """The sentence or two of ``plan`` that say what is to be done; empty for an empty plan.

    A plan with a selected outline or an objective is cut to these; a long text to the sentences from its first
    imperative on; histories, markup, labels and commit-like hashes are dropped.
    """
    text, outline, objective = _outlined(plan)
    if outline or objective:
        parts = [match.group(1) for match in (outline, objective) if match]
        return _clean(". ".join(_clean(part).rstrip(".") for part in parts))
    if len(text) > LONGEST:
        text = _from_first_imperative(text)
    return _clean(text)


def _outlined(plan: str) -> tuple[str, re.Match[str] | None, re.Match[str] | None]:
    """The plan without its history, with its selected outline and its objective."""
    # Patterns that ignore case are slow on pages of text; beyond ASCII they match more than lower case would.
    lowered = plan.lower() if plan.isascii() else ""
    text = plan
    if not lowered or " history" in lowered or "attempts" in lowered:
        text = _HISTORY.split(plan, maxsplit=1)[0]
    text = text.strip()
    outline = _OUTLINE.search(text) if not lowered or "selected " in lowered else None
    objective = _OBJECTIVE.search(text) if not lowered or "objective" in lowered else None
    return text, outline, objective


def _from_first_imperative(text: str) -> str:
    first: list[str] = []
    found: list[str] = []
    for sentence in _sentences(text):
        if found or _IMPERATIVE.match(_LEAD.sub("", sentence)):
            found.append(sentence)
        if len(first) < _TAKEN:
            first.append(sentence)
        if len(found) == _TAKEN:
            break
    return " ".join(found or first)


def _sentences(text: str) -> Iterator[str]:
    """Sentences and lines that hold something, found one by one: the deed mostly stands near the beginning."""
    start = 0
    for stop in _SENTENCE.finditer(text):
        sentence, start = text[start : stop.start()].strip(), stop.end()
        if sentence:
            yield sentence
    if text[start:].strip():
        yield text[start:].strip()


def _clean(text: str) -> str:
    text = _HASHES.sub(" ", text)
    text = re.sub(r"\*{2,}|^#+\s*|`", "", text, flags=re.MULTILINE)
    text = " ".join(text.split())
    text = _LABEL.sub("", _LEAD.sub("", text)).strip(" -–—:;")
    return text if len(text) <= LONGEST else _cut(text)


def _cut(text: str) -> str:
    """The whole sentences of ``text`` that fit; whole clauses or words where the first sentence does not."""
    head = text[: LONGEST + 1]
    for ends in (SENTENCE_END, _CLAUSE_END):
        fitting = [match.end() for match in ends.finditer(head) if match.end() <= LONGEST]
        if fitting and fitting[-1] >= LEAST:
            return head[: fitting[-1]].rstrip(" ,;:")
    return head.rsplit(" ", 1)[0][:LONGEST]
