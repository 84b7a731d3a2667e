"""C and C++ text with comments and literals taken out, so that words in them accuse nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
    |(?P<raw>R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    |(?P<string>"(?:\\.|[^"\\\n])*")
    |(?P<char>'(?:\\.|[^'\\\n])')
    """,
    re.VERBOSE | re.DOTALL,
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|\"[^\"\n]+\")", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CppText:
    """Source split into code (blanked where comments and literals stood, lines kept), literals and includes."""

    code: str
    literals: tuple[tuple[int, str], ...]
    includes: tuple[tuple[int, str], ...]


def split_cpp(source: str) -> CppText:
    """Join continued lines and separate code from comments and literals; positions are offsets in ``source``."""
    source = re.sub(r"\\\r?\n", "", source)
    literals: list[tuple[int, str]] = []

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        if match["comment"] is None:
            literals.append((match.start(), text))
            return '""' + _blanks(text[2:])
        return _blanks(text)

    without_comments = _TOKEN.sub(lambda match: _blanks(match.group()) if match["comment"] else match.group(), source)
    includes = tuple((match.start(), match[1]) for match in _INCLUDE.finditer(without_comments))
    code = _TOKEN.sub(blank, source)
    return CppText(code, tuple(literals), includes)


def _blanks(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def top_level(code: str) -> Iterator[tuple[int, str]]:
    """Statements outside functions and classes, with their offsets; preprocessor lines are left out."""
    code = re.sub(r"^[ \t]*#[^\n]*", lambda match: _blanks(match.group()), code, flags=re.MULTILINE)
    code = re.sub(r"\b(?:inline\s+)?namespace\b[\w\s:]*\{", lambda match: _blanks(match.group()), code)
    depth, start = 0, 0
    parts: list[str] = []
    for index, character in enumerate(code):
        if character == "{":
            depth += 1
        elif character == "}":
            depth = max(depth - 1, 0)
            if depth == 0:
                parts, start = [], index + 1
        elif depth == 0:
            parts.append(character)
            if character == ";":
                yield start, "".join(parts)
                parts, start = [], index + 1


def line_of(source: str, offset: int) -> int:
    """Line number, from 1."""
    return source.count("\n", 0, offset) + 1


def balanced(code: str, start: int, brackets: str) -> str:
    """From the bracket at ``start`` to the one that closes it, or to the end."""
    depth = 0
    for index in range(start, len(code)):
        depth += (code[index] == brackets[0]) - (code[index] == brackets[1])
        if depth == 0:
            return code[start : index + 1]
    return code[start:]
