"""From the text of an answer to a candidate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.candidate import Candidate, syntax_tree
from artifacts.errors import BadAnswerError
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.edits import SEARCH, applied, has_edits, read_edits

MAX_SOURCE_CHARS = 400_000
"""Longer code is refused: no kernel needs it, and parsing it would cost more than it can win."""

MAX_STATEMENT_CHARS = 600
"""Longer plans are cut: they are for the log and for people."""

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)")
_STATEMENT = re.compile(r"^[\s>#*_`-]*(PLAN|STRATEGY|STRATEGIES)[\s*_`]*[::][\s*_`]*(.*)$", re.IGNORECASE)
_THINKING = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_PYTHON = ("python", "py", "python3", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """What an answer gave.

    Attributes:
        plan: the model's own words on what it does; empty when it said nothing.
        strategies: names or ids of strategies that the model says it used, as it wrote them.
        edited: it came as edits of its parent, not as a file.
    """

    candidate: Candidate
    plan: str = ""
    strategies: tuple[str, ...] = ()
    edited: bool = False


@dataclass(frozen=True, slots=True)
class _Block:
    language: str
    text: str
    closed: bool


def parse_answer(answer: LlmAnswer, parent: str = "") -> ParsedAnswer:
    """Return the one candidate of ``answer``.

    Args:
        answer: what was said.
        parent: source that edits may be anchored in; empty when a whole file was asked for.

    Raises:
        BadAnswerError: a refusal, no code, several candidates, an unfinished block, an edit that fits nowhere or a
            syntax error; the message is also what the repair turn says to the model.
    """
    if answer.finish == "refusal":
        reason = f" ({answer.notes[0]})" if answer.notes else ""
        raise BadAnswerError(f"the model refused to answer{reason}", "ask again or use another model")
    if not answer.text.strip():
        raise BadAnswerError("the answer is empty" + _cut(answer), "ask for one python block that defines ModelNew")
    text = _THINKING.sub("", answer.text, count=1)
    edited = bool(parent) and has_edits(text)
    prose, blocks = _split(text.partition(SEARCH)[0] if edited else text)
    source = _checked(applied(parent, read_edits(text))) if edited else _choose(blocks, text, answer)
    plan, strategies = _statements(prose)
    return ParsedAnswer(candidate=Candidate(source), plan=plan, strategies=strategies, edited=edited)


def _split(text: str) -> tuple[str, tuple[_Block, ...]]:
    """Separate prose from fenced blocks; a fence is closed by one of its kind that is at least as long."""
    prose: list[str] = []
    blocks: list[_Block] = []
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    for line in lines:
        opening = _FENCE.match(line)
        if opening:
            blocks.append(_read_block(opening[1], opening[2].lower(), lines))
        else:
            prose.append(line)
    return "\n".join(prose), tuple(blocks)


def _read_block(fence: str, language: str, lines: Iterator[str]) -> _Block:
    body: list[str] = []
    for line in lines:
        mark = line.strip()
        if len(mark) >= len(fence) and set(mark) == {fence[0]}:
            return _Block(language, "\n".join(body), closed=True)
        body.append(line)
    return _Block(language, "\n".join(body), closed=False)


def _choose(blocks: tuple[_Block, ...], text: str, answer: LlmAnswer) -> str:
    if not blocks:
        return _bare_source(text, answer)
    wanted = [block for block in blocks if block.language in _PYTHON and _names_model_new(block.text)]
    if not wanted:
        found = ", ".join(block.language or "plain" for block in blocks)
        raise BadAnswerError(
            f"no python block defines class ModelNew (blocks found: {found})" + _cut(answer),
            "put the complete file in one python block",
        )
    if not wanted[-1].closed:
        raise BadAnswerError("the code block is not closed" + _cut(answer), "send the complete file, shorter if needed")
    distinct = {Candidate(block.text) for block in wanted}
    if len(distinct) > 1:
        raise BadAnswerError(
            f"{len(distinct)} different blocks define class ModelNew", "send exactly one complete file"
        )
    return _checked(wanted[0].text)


def _bare_source(text: str, answer: LlmAnswer) -> str:
    """Accept a file sent without fences; anything else without a block is an error."""
    if _names_model_new(text):
        try:
            return _checked(text)
        except BadAnswerError:
            pass
    raise BadAnswerError("the answer holds no code block" + _cut(answer), "put the complete file in one python block")


def _names_model_new(source: str) -> bool:
    return re.search(r"^class[ \t]+ModelNew\b", source, re.MULTILINE) is not None


def _checked(source: str) -> str:
    """Return ``source`` if Python can parse it and it defines ModelNew at top level."""
    if len(source) > MAX_SOURCE_CHARS:
        raise BadAnswerError(f"the code has {len(source)} characters", f"stay below {MAX_SOURCE_CHARS}")
    try:
        tree = syntax_tree(source)
    except SyntaxError as problem:
        line = (problem.text or "").strip()[:120]
        raise BadAnswerError(
            f"syntax error in line {problem.lineno}: {problem.msg}: {line!r}", "send it corrected"
        ) from (problem)
    except (ValueError, RecursionError, MemoryError) as problem:
        raise BadAnswerError(f"Python cannot read the code: {problem}", "send plain Python source") from problem
    if not any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body):
        raise BadAnswerError("the code does not define class ModelNew at top level", "define it there")
    return source


def _cut(answer: LlmAnswer) -> str:
    return " (it was cut at the token limit)" if answer.finish == "length" else ""


def _statements(prose: str) -> tuple[str, tuple[str, ...]]:
    """Read ``PLAN:`` (to the next blank line) and ``STRATEGY:`` (one line, comma-separated)."""
    plan: list[str] = []
    strategies: list[str] = []
    inside = False
    for line in prose.split("\n"):
        statement = _STATEMENT.match(line)
        if statement:
            inside = statement[1].upper() == "PLAN" and not plan
            if inside:
                plan.append(statement[2])
            elif statement[1].upper() != "PLAN":
                strategies += re.split(r"[,;]", statement[2])
        elif not line.strip():
            inside = inside and not any(part.strip() for part in plan)
        elif inside:
            plan.append(line)
    words = " ".join(" ".join(plan).replace("**", "").split())
    names = (re.sub(r"[\s*_`.]+$|^[\s*_`]+", "", name) for name in strategies)
    return words[:MAX_STATEMENT_CHARS], tuple(dict.fromkeys(name for name in names if name and name.lower() != "none"))
