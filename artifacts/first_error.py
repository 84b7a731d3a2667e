"""The one line of a failure that says what is wrong: out of what g++, clang, nvcc, linkers, Triton and Python print."""

from __future__ import annotations

import re

LONGEST = 300
"""Characters of a first error at most."""

_TOOL_ERROR = r"(?:(?:fatal|catastrophic|internal(?: compiler)?) )?(?:[Ee]rror|fatal)(?: #[\w-]+)?\s*:"
_LOCATED = re.compile(rf"(?P<place>\S+?(?::\d+(?::\d+)?|\(\d+\))): {_TOOL_ERROR} ?\S")
_UNLOCATED = re.compile(
    rf"(?:\S*(?:ptxas|nvlink|nvcc|cicc|cc1plus|clang|[gc]\+\+)\b.*|At end of source: ?){_TOOL_ERROR}"
)
_LINKER = re.compile(r"undefined reference to|undefined symbol|multiple definition of|cannot find -l|relocation R_")
_TRITON = re.compile(r"(?:[\w.]*\.)?CompilationError: at \d+:\d+:")
_TOLD = re.compile(r"line \d+: ")
_FRAME = re.compile(r"  line (\d+), in ")
_CARET = re.compile(r"[\s|]*[~^][\s~^]*")
_MARGIN = re.compile(r"\s*\d* \| ")
_FOLDER = re.compile(r"(?<![\w./])/(?:[\w.+-]+/)+(?=[\w.+-])")
_INSTANTIATED = re.compile(r"(\S+?:\d+):\d+:\s+required from here")


def first_error(error: str, source: str = "") -> str:
    """The first error in the text of a failure, on one line; the first line where no tool is recognised.

    Args:
        error: all that is known of the failure; text that begins with a first error gives it again.
        source: the candidate. Where the code that a compiler quotes stands there once, the line number is the
            candidate's own, ``line 14: error: ...``; otherwise that of the file which the compiler saw.
    """
    lines = [line.rstrip() for line in error.splitlines() if line.strip()]
    if not lines or _TOLD.match(lines[0]):
        return (lines or [""])[0][:LONGEST]
    if _TRITON.match(lines[0]):
        return _triton(lines, source)[:LONGEST]
    at = next((number for number, line in enumerate(lines) if _says_error(line)), None)
    if at is None:
        return _python(lines)[:LONGEST]
    found = _FOLDER.sub("", lines[at].strip())
    own = _line_in(source, _quoted(lines, at))
    located = _LOCATED.match(found)
    if own and located:
        return f"line {own}: {found[located.end('place') + 2 :]}"[:LONGEST]
    frame = _deepest(lines)
    return f"{frame}{found}{'' if frame else _instantiated(lines, at)}"[:LONGEST]


def lead_with_first_error(error: str, source: str) -> str:
    """``error`` with its first error in front, unless it begins with that already."""
    first, (begin, *_) = first_error(error, source), [*error.splitlines(), ""]
    return error if first.endswith(begin.strip()) else f"{first}\n{error}"


def _says_error(line: str) -> bool:
    text = line.strip()
    return any(kind.match(text) for kind in (_LOCATED, _UNLOCATED)) or _LINKER.search(text) is not None


def _triton(lines: list[str], source: str) -> str:
    """The message after the quoted kernel, at the quoted line."""
    caret = next((number for number, line in enumerate(lines) if number and _CARET.fullmatch(line)), 0)
    message = " ".join(line.strip() for line in lines[caret + 1 : caret + 2]) or lines[0]
    own = _line_in(source, lines[caret - 1]) if caret else 0
    return f"line {own}: {message}" if own else f"{_deepest(lines)}{message}"


def _python(lines: list[str]) -> str:
    """The exception, where the candidate was when it was raised."""
    return f"{_deepest(lines)}{_FOLDER.sub('', lines[0].strip())}"


def _deepest(lines: list[str]) -> str:
    frames = [found[1] for found in map(_FRAME.match, lines) if found]
    return f"line {frames[-1]}: " if frames else ""


def _quoted(lines: list[str], at: int) -> str:
    """The code that the error at ``lines[at]`` points into; empty when it quotes none."""
    for number in range(at + 1, len(lines)):
        if _says_error(lines[number]):
            break
        if number > at + 1 and _CARET.fullmatch(lines[number]):
            return _MARGIN.sub("", lines[number - 1], count=1)
    return ""


def _instantiated(lines: list[str], at: int) -> str:
    """Where the candidate made a template of others fail; g++ says it before the error."""
    for line in reversed(lines[:at]):
        if _says_error(line):
            break
        if found := _INSTANTIATED.match(line.strip()):
            return f" (required from {_FOLDER.sub('', found[1])})"
    return ""


def _line_in(source: str, code: str) -> int:
    """Number of the one line of ``source`` that is ``code``; 0 when none or several are."""
    numbers = [number for number, line in enumerate(source.splitlines(), start=1) if line.strip() == code.strip()]
    return numbers[0] if code.strip() and len(numbers) == 1 else 0
