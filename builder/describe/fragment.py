"""The piece of code that a step added: what a strategy's template is made of."""

from __future__ import annotations

import ast
import difflib
import functools
import re
import textwrap
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from artifacts.features.extract import is_c_family, is_python, parse_python, take_apart

NO_LEVEL = 1_000_000
"""Level of lines that belong to no statement, such as comments."""
_LITERALS = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_LABEL = re.compile(r"(?:case\b.*|default|public|private|protected)\s*:$")
_CONTINUES = re.compile(r"(?:else|catch)\b|[)\]},;:?.<]")
_SAYS_NOTHING = re.compile(r"$|//|/?\*|\#(?!pragma)|import\b|from\b|[{}()\[\];,\s]+$")


@dataclass(frozen=True, slots=True)
class Outline:
    """Where statements begin and end, by line number from 0.

    Attributes:
        level: lowest nesting that a line touches.
        starts: nesting of the statements that begin with a line.
        ends: nestings of the statements that end with a line.
    """

    level: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, set[int]] = field(default_factory=dict)

    def blocks(self, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
        """Runs of whole sibling statements between two lines, of at most ``most`` lines, as half-open ranges."""
        level, starts, ends = self.level.get, self.starts.get, self.ends.get
        for first in range(start, end):
            nesting = starts(first)
            if nesting is None:
                continue
            for last in range(first, min(end, first + most)):
                if level(last, -1) < nesting:
                    break
                if nesting in ends(last, ()):
                    yield first, last + 1


def outlines(code: str) -> tuple[Outline, ...]:
    """Outline of the Python of ``code`` and of each C-family text in it; none for what cannot be read."""
    tree = parse_python(code) if is_python(code) or not is_c_family(code) else None
    if tree is None:
        return (_c_outline(code, 0, 0),) if take_apart(code).kernels == (code,) else ()
    return (_python_outline(tree, code), *(_c_outline(*held, 1) for held in _held(tree)))


def does_something(line: str) -> bool:
    """Whether ``line`` does something: no comment, import, include or lone bracket."""
    return _SAYS_NOTHING.match(line.strip()) is None


def _held(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """String literals that are C-family text, with their first line; only those that read line by line as written."""
    for node in _constants(tree):
        if isinstance(node.value, str) and is_c_family(node.value):
            as_written = node.value.count("\n") == (node.end_lineno or 0) - node.lineno
            yield from [(node.value, node.lineno - 1)] * as_written


def _constants(tree: ast.Module) -> Iterator[ast.Constant]:
    """Constants in plain statements of several lines: where long texts stand."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop(0)
        inner = list(_inner(statement))
        waiting[:0] = inner
        if not inner:
            yield from _long_constants(statement)


def _long_constants(statement: ast.stmt) -> Iterator[ast.Constant]:
    """Constants of several lines in a statement; what stands on one line holds none and is not looked into."""
    waiting: deque[ast.AST] = deque([statement])
    while waiting:
        node = waiting.popleft()
        if getattr(node, "end_lineno", None) == getattr(node, "lineno", 0):
            continue
        if isinstance(node, ast.Constant):
            yield node
        waiting += ast.iter_child_nodes(node)


def _python_outline(tree: ast.Module, code: str) -> Outline:
    found, lines = Outline(), [line.strip() for line in code.splitlines()]
    # A stack instead of recursion: a chain of elif is as deep as it is long.
    waiting = [(statement, 0, -1) for statement in tree.body]
    while waiting:
        statement, nesting, header = waiting.pop()
        first, last = _lines_of(statement)
        nesting -= lines[first].startswith("elif")  # a part of the statement above, however the tree sees it
        found.starts[first] = min(nesting, found.starts.get(first, nesting))
        found.ends.setdefault(last, set()).add(nesting)
        for number in range(max(first, header + 1), last + 1):
            found.level[number] = max(nesting, found.level.get(number, nesting))
        waiting += [(inner, nesting + 1, statement.lineno - 1) for inner in _inner(statement)]
    for number, line in enumerate(lines):
        if line.startswith("elif"):
            found.starts.pop(number, None)
        if not line or line.startswith("#"):
            found.level[number] = NO_LEVEL
    return found


def _lines_of(statement: ast.stmt) -> tuple[int, int]:
    """First and last line, decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(item.lineno for item in decorators)])
    return first - 1, (statement.end_lineno or statement.lineno) - 1


def _inner(statement: ast.stmt) -> Iterator[ast.stmt]:
    for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        for name in ("body", "orelse", "finalbody"):
            yield from getattr(part, name, ())


def _c_outline(text: str, offset: int, edge: int) -> Outline:
    """Outline of C-family text from line ``offset`` on; ``edge`` lines at either end are shared with quotes."""
    found = Outline()
    lines = _LITERALS.sub(_blanked, text).split("\n")
    braces = brackets = 0
    fresh = True
    for number, line in enumerate(line.strip() for line in lines):
        inside = edge <= number < len(lines) - edge
        if fresh and inside and not _CONTINUES.match(line):
            found.starts[offset + number] = braces
        low, braces = _nesting(line, braces)
        brackets += line.count("(") + line.count("[") - line.count(")") - line.count("]")
        brackets += line.startswith("#if") - line.startswith("#endif")
        found.level[offset + number] = low
        fresh = brackets == 0 and (_closes(line) if line else fresh)
        if fresh and line and inside:
            found.ends[offset + number] = {braces}
    return found


def _nesting(line: str, braces: int) -> tuple[int, int]:
    """Lowest number of open braces along ``line`` and that at its end."""
    if "}" not in line:
        return braces, braces + line.count("{")
    low = braces
    for character in line:
        braces += (character == "{") - (character == "}")
        low = min(low, braces)
    return low, braces


def _closes(line: str) -> bool:
    if line.startswith("#"):
        return not line.startswith("#pragma") and not line.endswith("\\")
    return line.endswith((";", "{", "}")) or _LABEL.match(line) is not None


def _blanked(match: re.Match[str]) -> str:
    """Comments and literals without what could be taken for structure, on as many lines."""
    shown = "" if match[0].startswith("/") else "0"
    return shown + "\n" * match[0].count("\n")


MOST_CHARACTERS = 1600
MOST_LINES = 45
LARGEST = 200_000
"""Sources above this many characters are not compared: difflib is quadratic at worst."""
MOST_PAIRS = 1_000_000
"""Nor those with more pairs of equal lines than this, by which its time goes."""


@functools.lru_cache(maxsize=1024)
def added_fragment(parent: str, child: str) -> str:
    """The largest whole statements, loops or functions that ``child`` has and ``parent`` lacks; empty without any.

    Neighbouring changes are looked at together when no more than two kept lines lie between them. What is longer than
    fits a prompt is shown in part, but the part is whole: a loop of a function, a few statements of a loop.
    """
    before, after = parent.splitlines(), child.splitlines()
    if len(parent) + len(child) > LARGEST or not after:
        return ""
    old, new = [line.strip() for line in before], [line.strip() for line in after]
    if _pairs(old, new) > MOST_PAIRS:
        return ""
    matcher = difflib.SequenceMatcher(None, old, new, False)
    runs = [(start, end) for tag, _, _, start, end in matcher.get_opcodes() if tag in ("insert", "replace")]
    if not runs:
        return ""
    start, end = _most_substantial(child, after, _joined(runs))
    return textwrap.dedent("\n".join(line.rstrip() for line in after[start:end])).strip("\n")


def _pairs(old: list[str], new: list[str]) -> int:
    """How many pairs of lines are equal."""
    counts = Counter(new)
    return sum(counts[line] for line in old)


def _most_substantial(child: str, lines: list[str], runs: list[tuple[int, int]]) -> tuple[int, int]:
    """The block within ``runs`` with the most lines that do something, the first of equals; empty when none does."""
    # Sums up to each line, so that a block costs two look-ups however long it is.
    counts = [0, *accumulate(does_something(line) for line in lines)]
    characters = [0, *accumulate(len(line) + 1 for line in lines)]
    most, best = 0, (0, 0)
    for outline in outlines(child):
        for run in runs:
            for start, end in outline.blocks(*run, MOST_LINES):
                count = counts[end] - counts[start]
                better = count > most or (count == most > 0 and (start, end) < best)
                if better and characters[end] - characters[start] <= MOST_CHARACTERS:
                    most, best = count, (start, end)
    return best


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [runs[0]]
    for start, end in runs[1:]:
        if start - joined[-1][1] <= 2:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
