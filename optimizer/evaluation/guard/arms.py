"""What runs in some calls only: the parts of a function that a condition guards."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from optimizer.evaluation.guard.names import Function

_BLANK = ("empty", "zeros", "new_empty", "new_zeros", "clone", "view", "reshape")


def arms(function: Function) -> Iterator[ast.AST]:
    """Expressions and statements that depend on a condition: branches, and what follows one that returns.

    A backward function that leaves out what nobody asks for has no choice between two ways.
    """
    backward = getattr(function, "name", "") == "backward"
    for node in ast.walk(function):
        if backward and isinstance(node, ast.If) and _asks_what_is_needed(node.test):
            continue
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


def _asks_what_is_needed(test: ast.expr) -> bool:
    """``ctx.needs_input_grad[0]``, alone or with others."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return all(
        isinstance(part, ast.Subscript)
        and isinstance(part.value, ast.Attribute)
        and part.value.attr == "needs_input_grad"
        for part in parts
    )


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
