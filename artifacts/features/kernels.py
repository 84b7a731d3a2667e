"""Kernels of C-family text taken apart: loops and branches, where values come from, what called functions do."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

QUERY = """
(while_statement) @while
(do_statement) @while
(if_statement) @branch
(init_declarator value: (lambda_expression)) @lambda
"""
"""Captures that this module needs beside those of functions and ``for`` loops."""

_LONGEST = 60_000
"""Characters of a function looked at; the longest kernel of the shipped logs has 30,000."""
MOST = 200
"""Places of a kind, and steps from a name to what it is made of, that are followed in one kernel."""

NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
SET = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)\s*([^;]{1,300}?)\s*(?=;|,\s*\w+\s*=[^=]|\)\s*\{)")
"""A name and what it is set to."""
ELEMENT = re.compile(r"\b([A-Za-z_]\w*)\s*((?:\[[^\[\]]{1,120}\])+)(?:\.\w)?\s*=(?!=)\s*([^;]{1,300});")
"""An array, an index and what is stored there."""
_CALL = r"\s*(?:<[^;<>]{0,60}>\s*)?\("
_CALLED = re.compile(rf"\b([A-Za-z_]\w*+)(?={_CALL})")
_ARRAY = re.compile(
    r"\b(?:float|double|half|int|unsigned|T|scalar_t|u?int\d*(?:_t)?|float\d|uint\d|__\w+)\s+(\w+)\s*\["
)
_SHARED = re.compile(r"__shared__[^;=]{0,200}?\b(\w+)\s*(?:\[[^\]]{0,120}\])*\s*[;,={]")
LOAD = re.compile(r"^(?:\([^()]*\)\s*\?\s*|\w+\s*\?\s*)?(?:__ld\w*|ld\w*|\w*[lL]oad\w*|\*\s*reinterpret_cast)\s*[<(]")
_PLAIN = re.compile(r"^(?:\([^()]*\)\s*\?\s*)?(?:\w+\s*\(\s*)?([A-Za-z_]\w*)\s*(\[|(?:\.\w)?\s*\)?$)")
"""One name, an element or a member of it, as it is or as the argument of one function."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text: where it begins and ends there, and what it says."""

    start: int
    end: int
    text: str

    def holds(self, other: Part) -> bool:
        """Whether ``other`` lies inside."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True)
class Branch:
    """An ``if``; ``otherwise`` is empty without an ``else``."""

    condition: str
    then: Part
    otherwise: str


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel.

    Attributes:
        body: with braces; comments are blanks.
        loops, branches: those in it, outer ones before inner ones.
        shared: names declared in shared memory.
        registers: names of other arrays declared in the kernel.
    """

    body: Part
    loops: tuple[Part, ...]
    branches: tuple[Branch, ...]
    shared: frozenset[str]
    registers: frozenset[str]

    @functools.cached_property
    def sets(self) -> tuple[re.Match[str], ...]:
        """Where a name is set."""
        return tuple(SET.finditer(self.body.text))

    @functools.cached_property
    def made(self) -> Mapping[str, str]:
        """What each name is set to first."""
        return first_values(self.sets)

    @functools.cached_property
    def elements(self) -> tuple[re.Match[str], ...]:
        """Where an element of an array is set."""
        return tuple(ELEMENT.finditer(self.body.text))

    def reach(self, expression: str) -> str:
        """``expression`` and what the names in it were first set to, and the names in that, and so on."""
        seen: set[str] = set()
        pending = NAME.findall(expression)
        parts = [expression]
        while pending and len(seen) < MOST:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                parts.append(self.made.get(name, ""))
                pending.extend(NAME.findall(parts[-1]))
        return " ".join(parts)

    def before(self, part: Part) -> str:
        """The text in front of ``part``."""
        return self.body.text[: part.start - self.body.start]

    def outside(self, part: Part) -> str:
        """The text without ``part``."""
        return f"{self.before(part)} {self.body.text[part.end - self.body.start :]}"

    def loads(self, value: str, loaded: frozenset[str] = frozenset()) -> bool:
        """Whether ``value`` comes from memory or is one of ``loaded``, as it is or through one function."""
        if LOAD.match(value):
            return True
        plain = _PLAIN.match(value)
        if plain is None:
            return False
        return plain[1] in loaded or (plain[2] == "[" and plain[1] not in self.registers)


def places(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The first places of ``pattern``: what is looked at more closely is bounded."""
    return list(itertools.islice(pattern.finditer(text), MOST))


def functions_in(data: bytes, captures: Mapping[str, list[Node]]) -> dict[str, str]:
    """Bodies of functions and lambdas that are no kernels, by name."""
    found: dict[str, str] = {}
    for node in _first(captures.get("function", [])):
        body, head = node.child_by_field_name("body"), node.child_by_field_name("declarator")
        if body is None or head is None or _is_kernel(data, node, body):
            continue
        name = NAME.search(_text(data, head))
        if name is not None:
            found[name[0]] = _text(data, body)
    for node in _first(captures.get("lambda", [])):
        head, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
        if head is not None and value is not None:
            found[_text(data, head)] = _text(data, value)
    return found


def kernels_in(data: bytes, captures: Mapping[str, list[Node]]) -> list[Kernel]:
    """The kernels of ``data`` in their order."""
    loops = [*captures.get("loop", []), *captures.get("while", [])]
    kernels: list[Kernel] = []
    for node in _first(captures.get("function", [])):
        body = node.child_by_field_name("body")
        if body is None or not _is_kernel(data, node, body):
            continue
        part = _part(data, body)
        shared = frozenset(_SHARED.findall(part.text))
        kernels.append(
            Kernel(
                body=part,
                loops=tuple(_part(data, loop) for loop in _first(_within(loops, part))),
                branches=tuple(_branches(data, _first(_within(captures.get("branch", []), part)))),
                shared=shared,
                registers=frozenset(_ARRAY.findall(part.text)) - shared,
            )
        )
    return kernels


def first_values(sets: Iterable[re.Match[str]]) -> dict[str, str]:
    """What each name is set to first."""
    made: dict[str, str] = {}
    for found in sets:
        made.setdefault(found[1], found[2])
    return made


def calls_in(functions: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Which of the functions each of them calls."""
    known = functions.keys()
    return {name: frozenset(known & set(_CALLED.findall(body))) for name, body in functions.items()}


def doing(functions: Mapping[str, str], calls: Mapping[str, frozenset[str]], mark: re.Pattern[str]) -> re.Pattern[str]:
    """What matches ``mark`` itself and calls of functions that do it, by themselves or through up to two others."""
    names = {name for name, body in functions.items() if mark.search(body)}
    for _ in range(2):
        names |= {name for name, called in calls.items() if not names.isdisjoint(called)}
    return _joined(mark.pattern, tuple(sorted(names))) if names else mark


@functools.lru_cache(maxsize=1024)
def _joined(mark: str, names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{mark}|\b(?:{'|'.join(map(re.escape, names))}){_CALL}")


def _is_kernel(data: bytes, function: Node, body: Node) -> bool:
    return b"__global__" in data[function.start_byte : body.start_byte]


def _first(nodes: Iterable[Node]) -> list[Node]:
    """The first nodes in the order of the text; captures come in no fixed one."""
    return sorted(nodes, key=lambda node: node.start_byte)[:MOST]


def _within(nodes: Iterable[Node], part: Part) -> Iterator[Node]:
    return (node for node in nodes if part.start <= node.start_byte and node.end_byte <= part.end)


def _part(data: bytes, node: Node) -> Part:
    return Part(node.start_byte, min(node.end_byte, node.start_byte + _LONGEST), _text(data, node))


def _text(data: bytes, node: Node) -> str:
    """One character a byte, so that places in it are those of the node."""
    return data[node.start_byte : min(node.end_byte, node.start_byte + _LONGEST)].decode("latin-1")


def _branches(data: bytes, nodes: Iterable[Node]) -> Iterator[Branch]:
    for node in nodes:
        condition, then = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        other = node.child_by_field_name("alternative")
        if condition is not None and then is not None:
            yield Branch(_text(data, condition), _part(data, then), "" if other is None else _text(data, other))
