"""Constants that a candidate declares as tunable: reading them and setting them, without running the code."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from artifacts.errors import BadAnswerError
from artifacts.syntax import parse

NAME = "TUNABLES"
"""Top-level dictionary in a candidate: constant → its legal values, as the prompt asks for it."""

MOST_CONSTANTS = 4
MOST_VALUES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a candidate lets a program search.

    Attributes:
        values: constant → legal values, in the order of the declaration.
        assigned: constant → the value that the source has now.
    """

    values: Mapping[str, tuple[int, ...]]
    assigned: Mapping[str, int]

    @property
    def combinations(self) -> int:
        """Number of settings, the assigned one included."""
        return math.prod(len(values) for values in self.values.values())

    def settings(self) -> Iterator[dict[str, int]]:
        """All settings, in the order of the declaration."""
        for values in itertools.product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))


def declared(source: str) -> Declared | None:
    """Read the declaration of ``source``; None when it has none.

    Raises:
        BadAnswerError: there is one and it cannot be used; the candidate itself is not touched by that.
    """
    body = parse(source).body
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == NAME]
    if not found:
        return None
    values = _values(found[-1])
    assigned = {name: int(ast.literal_eval(_assigned(body, name))) for name in values}
    for name, legal in values.items():
        if assigned[name] not in legal:
            raise _bad(f"{name} = {assigned[name]} is not among its legal values {list(legal)}")
    return Declared(values=values, assigned=assigned)


def with_setting(source: str, setting: Mapping[str, int]) -> str:
    """Return ``source`` with its constants set to ``setting``; everything else stays as it is.

    Raises:
        BadAnswerError: a constant is not assigned once at top level.
    """
    body = parse(source).body
    lines = source.encode("utf-8").split(b"\n")
    for name, value in setting.items():
        node = _assigned(body, name)
        line = lines[node.lineno - 1]
        assert node.end_col_offset is not None
        lines[node.lineno - 1] = line[: node.col_offset] + str(value).encode() + line[node.end_col_offset :]
    return b"\n".join(lines).decode("utf-8")


def _values(node: ast.expr) -> dict[str, tuple[int, ...]]:
    try:
        data = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as problem:
        raise _bad("it is not written out as plain values") from problem
    if not isinstance(data, dict) or not 1 <= len(data) <= MOST_CONSTANTS:
        raise _bad(f"it must be a dictionary of one to {MOST_CONSTANTS} constants")
    return {_name(name): _legal(name, values) for name, values in data.items()}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise _bad(f"{name!r} is not the name of a constant")
    return name


def _legal(name: object, values: object) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or not values:
        raise _bad(f"{name} needs a list of values")
    if not all(type(value) is int for value in values):
        raise _bad(f"{name} takes whole numbers only")
    distinct = tuple(dict.fromkeys(values))
    if len(distinct) > MOST_VALUES:
        raise _bad(f"{name} has {len(distinct)} values, at most {MOST_VALUES} are searched")
    return distinct


def _assigned(body: list[ast.stmt], name: str) -> ast.Constant:
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == name]
    if len(found) != 1 or not isinstance(found[0], ast.Constant) or type(found[0].value) is not int:
        raise _bad(f"{name} must be assigned once at top level, to a whole number")
    return found[0]


def _target(node: ast.Assign) -> str:
    target = node.targets[0]
    return target.id if len(node.targets) == 1 and isinstance(target, ast.Name) else ""


def _bad(reason: str) -> BadAnswerError:
    return BadAnswerError(f"{NAME} cannot be used: {reason}", "the candidate is taken as it is")


def declared_or_none(source: str) -> Declared | None:
    """What a candidate lets a program search; None when it declares nothing that can be used."""
    try:
        return declared(source)
    except BadAnswerError:
        return None
