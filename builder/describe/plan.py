"""What a plan says: its intent cut out of the text, and the clauses that tell deed, means, purpose and what stays."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a clause says: the deed, its means, its purpose, or what is left as it is."""

    ACTION = "action"
    MEANS = "means"
    PURPOSE = "purpose"
    KEPT = "kept"


WEIGHTS: Mapping[Role, float] = {Role.ACTION: 1.0, Role.MEANS: 1.0, Role.PURPOSE: 0.4, Role.KEPT: 0.08}
"""How much a term counts by the clause it stands in."""

_GOAL_HEAD = 0.55
"""A head like "Optimize memory access by ..." only names the goal once the means follow."""

_SENTENCE_DECAY = 0.5
_POSITION_SCALE = 100.0

_KEPT = (
    r"\b(?:while|and)?\s*(?:still\s+)?(?:maintaining|preserving|retaining|keeping|without|rather than|instead of"
    r"|inherited from|beyond the|(?:with)?in the (?:existing|current)|avoiding)\b"
)
_MEANS = (
    r"\b(?:by|via|through)\s+(?:\w+ly\s+)?(?:implementing|using|applying|introducing|adding|having|restructuring"
    r"|processing|reducing|increasing|replacing|combining|exploring|adopting|ensuring|loading|reorganizing"
    r"|eliminating|reusing|rebasing|splitting|fusing|making|organizing|simplifying|vectorizing|removing"
    r"|investigating|computing)\b|\bspecifically\b|\be\.g\.|\bi\.e\."
)
_PURPOSE = (
    r"\b(?:to|thereby|thus|in order to|so that|so as to|aiming to)\s+(?:\w+ly\s+)?(?:cure|enable|reduce|improve"
    r"|increase|maximi[sz]e|minimi[sz]e|eliminate|relieve|alleviate|boost|hide|achieve|better|exploit|halve|cut"
    r"|slash|shrink|raise|lower|overcome|address|mitigate|promote|ensure|allow|help|avoid|match|target|restore"
    r"|saturate|overlap|provide)\b"
    r"|\b(?:curing|enabling|reducing|improving|increasing|maximizing|minimizing|eliminating|relieving|alleviating"
    r"|boosting|hiding|allowing|leading to|resulting in|thereby|lowering|raising|leveraging|targeting|leaving"
    r"|promoting|elevating|focusing on|to better|for (?:better|improved|higher|full|maximum)"
    r"|which (?:will|would|can)|this (?:will|should|would)|so that|because)\b"
)
_STOP = r"(?<=[.;!?])\s+(?=\S)|\n+|[\u3002\uff1b\uff01]"
_CONNECTORS = re.compile(
    f"(?P<kept>{_KEPT})|(?P<means>{_MEANS})|(?P<purpose>{_PURPOSE})|(?P<stop>{_STOP})", re.IGNORECASE
)
_GOAL_VERB = re.compile(
    r"^\W*(?:optimi[sz]e|improve|enhance|increase|reduce|maximi[sz]e|minimi[sz]e|further)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A stretch of text with its role and the weight that its terms carry."""

    start: int
    end: int
    role: Role
    weight: float


def clauses(text: str) -> tuple[Clause, ...]:
    """Clauses of ``text`` in order, covering it; weights fall with each further sentence."""
    found: list[Clause] = []
    role, start, sentence = Role.ACTION, 0, 0
    for match in _CONNECTORS.finditer(text):
        kind = match.lastgroup or "stop"
        if match.start() > start:
            found.append(_clause(start, match.start(), role, sentence))
        start = match.start()
        if kind == "stop":
            role, sentence = Role.ACTION, sentence + 1
        else:
            role = Role(kind)
    if start < len(text) or not found:
        found.append(_clause(start, len(text), role, sentence))
    return _discount_goal(text, found)


def weight_at(parts: tuple[Clause, ...], offset: int) -> float:
    """Weight of a term that begins at ``offset``: that of its clause, falling slowly along the text."""
    for part in parts:
        if part.start <= offset < part.end:
            return part.weight * float(2.0 ** (-offset / _POSITION_SCALE))
    return 0.0


def _clause(start: int, end: int, role: Role, sentence: int) -> Clause:
    return Clause(start=start, end=end, role=role, weight=WEIGHTS[role] * _SENTENCE_DECAY**sentence)


def _discount_goal(text: str, found: list[Clause]) -> tuple[Clause, ...]:
    means = any(part.role is Role.MEANS for part in found[1:3])
    if means and _GOAL_VERB.match(text):
        head = found[0]
        found[0] = Clause(start=head.start, end=head.end, role=head.role, weight=head.weight * _GOAL_HEAD)
    return tuple(found)


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


_ADDRESSES_MODEL = re.compile(
    r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,20}\b(?:your|my|all|any|these|previous|prior|earlier|above)\b"
    r"[^.\n]{0,20}\b(?:instructions|rules|prompts?|guidelines)\b"
    r"|\b(?:system|developer) prompt\b"
    r"|<\|?/?(?:system|assistant|user|im_start|im_end)\b"
    r"|\byou are (?:now|no longer) (?:an?|the)\b",
    re.IGNORECASE,
)
_TO_MODEL = ("instructions", "rules", "prompt", "guidelines", "<", "you are ")
"""One of these is in whatever :data:`_ADDRESSES_MODEL` matches in plain ASCII."""


def addresses_model(text: str) -> bool:
    """Whether a plan speaks to the model that will read it instead of about a kernel.

    Narrow on purpose: orders about instructions, rules or prompts, role marks of chats, and new roles. Such a plan is
    dropped as a whole; its step is described by its code.
    """
    lowered = text.lower()
    if text.isascii() and not any(word in lowered for word in _TO_MODEL):
        return False
    return _ADDRESSES_MODEL.search(text) is not None


@functools.lru_cache(maxsize=1024)
def intent(plan: str) -> str:
    """The sentence or two of ``plan`` that say what is to be done; empty for an empty plan and for orders to a model.

    A plan with a selected outline or an objective is cut to these; a long text to the sentences from its first
    imperative on; histories, markup, labels and commit-like hashes are dropped.
    """
    if addresses_model(plan):
        return ""
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


SENTENCE_END = re.compile(
    r"(?:(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?][)\]\"'`]*(?=\s|$)|[\u3002\uff01\uff1f])"
)
"""Full stops, also full-width ones, that are not part of a number, a name or an abbreviation."""


def whole_sentences(text: str) -> str:
    """``text`` up to its last sentence end; all of it when it has none, as a heading or a short phrase has."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]].strip() if ends else text.strip()
