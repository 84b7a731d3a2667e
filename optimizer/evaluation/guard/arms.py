"""What runs in some calls only: the parts of a function that a condition guards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from optimizer.evaluation.guard.names import Function

_BLANK = ("empty", "zeros", "new_empty", "new_zeros", "clone", "view", "reshape")


def arms(function: Function) -> Iterator[ast.AST]:
    """Expressions and statements that depend on a condition: branches, and what follows one that returns."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.IfExp):
            yield from (node.body, node.orelse)
        elif isinstance(node, ast.BoolOp):
            yield from node.values[1:]
        elif isinstance(node, ast.While):
            yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Match):
            yield from (statement for case in node.cases for statement in case.body)
        for block in _blocks(node):
            yield from _after_a_return(block)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _after_a_return(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run only where a branch before them has not returned an answer of its own."""
    for place, statement in enumerate(block):
        if isinstance(statement, ast.If) and any(map(_answers, ast.walk(statement))):
            yield from block[place + 1 :]
            return


def _answers(node: ast.AST) -> bool:
    """A return of something computed; what needs no arithmetic, as for no elements at all, is none."""
    if not isinstance(node, ast.Return) or not isinstance(node.value, ast.Call):
        return False
    name = node.value.func.attr if isinstance(node.value.func, ast.Attribute) else ""
    return not name.startswith(_BLANK)
