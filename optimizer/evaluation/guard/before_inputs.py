"""Functions that run before there are inputs: constructors, and helpers that they alone call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from optimizer.evaluation.guard.names import Function
from optimizer.evaluation.guard.tables import CALLED_BY_TORCH

_CONSTRUCTOR = "__init__"
_PLAIN_DECORATORS = {"staticmethod", "classmethod"}


@dataclass(frozen=True, slots=True)
class _Mention:
    """A name or attribute that is read: whether it is called there, and the function right around it."""

    name: str
    called: bool
    around: Function | None


def before_inputs(tree: ast.Module) -> set[Function]:
    """Constructors of classes that no running function names, and helpers such as ``_make_layer``.

    Every mention of a helper is a call in a constructor or in another helper. What torch calls by itself,
    what is handed about as a value and what may be reached by a name put together at run time is none.
    """
    mentions: dict[str, list[_Mention]] = {}
    for mention in _mentions(tree):
        mentions.setdefault(mention.name, []).append(mention)
    families = _families(tree)
    early: set[Function] = {
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _may_be_early(node, mentions)
    }
    while late := {function for function in early if not _is_early(function, early, mentions, families)}:
        early -= late
    return early


def runs_constructors_again(tree: ast.Module) -> bool:
    """Whether anything but a constructor names ``__init__``: objects may then be filled anew while they live."""
    return any(
        mention.name == _CONSTRUCTOR and getattr(mention.around, "name", "") != _CONSTRUCTOR
        for mention in _mentions(tree)
    )


def _may_be_early(function: ast.FunctionDef, mentions: dict[str, list[_Mention]]) -> bool:
    if function.name == _CONSTRUCTOR:
        return True
    named = {part.id if isinstance(part, ast.Name) else "" for part in function.decorator_list}
    hidden = function.name.startswith("__") or "getattr" in mentions
    return named <= _PLAIN_DECORATORS and not hidden and function.name not in CALLED_BY_TORCH


def _is_early(
    function: Function, early: set[Function], mentions: dict[str, list[_Mention]], families: dict[Function, set[str]]
) -> bool:
    name = getattr(function, "name", "")
    if name != _CONSTRUCTOR:
        return name in mentions and all(mention.called and mention.around in early for mention in mentions[name])
    return all(
        mention.around is None or mention.around in early
        for owner in (_CONSTRUCTOR, *families.get(function, ()))
        for mention in mentions.get(owner, ())
    )


def _families(tree: ast.Module) -> dict[Function, set[str]]:
    """For each constructor the names of the classes that it makes: its own and those that inherit it."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    heirs: dict[str, list[str]] = {}
    for node in classes:
        for base in node.bases:
            heirs.setdefault(_name(base), []).append(node.name)
    found: dict[Function, set[str]] = {}
    for node in classes:
        family, waiting = {node.name}, [node.name]
        while waiting:
            new = set(heirs.get(waiting.pop(), ())) - family
            family |= new
            waiting += new
        found |= {part: family for part in node.body if isinstance(part, ast.FunctionDef) and part.name == _CONSTRUCTOR}
    return found


def _mentions(tree: ast.Module) -> Iterator[_Mention]:
    waiting: list[tuple[ast.AST, Function | None]] = [(tree, None)]
    while waiting:
        node, around = waiting.pop()
        called = node.func if isinstance(node, ast.Call) else None
        for child in ast.iter_child_nodes(node):
            if name := _name(child):
                yield _Mention(name, child is called, around)
            waiting.append((child, child if isinstance(child, Function) else around))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""
