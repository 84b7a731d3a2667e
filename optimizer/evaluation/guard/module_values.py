"""What becomes of modules: named, not handed about, and some of them not while a candidate runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.names import Function, Names, bound_in, dotted
from optimizer.evaluation.guard.python_rules import finding
from optimizer.evaluation.guard.tables import HARMLESS_PARTS, MODULES, SETUP_MODULES

_PARTS = {f"torch.{name}" for name in ("backends", "backends.cuda", "backends.cuda.matmul", "backends.cudnn")}
_HALF_OPEN = {part.rpartition(".")[0] for part in HARMLESS_PARTS}
_MODULES = (MODULES | _PARTS | _HALF_OPEN | {"os.environ", *SETUP_MODULES}) - {"string.Template"}


def module_values(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Modules in containers, as arguments, results or captured in any other way than by a plain assignment."""
    named = _plainly_named(tree)
    attributes = {id(node) for node in names.outermost_attributes}
    for node, around in _with_functions(tree):
        if id(node) in named or not _is_load(node, attributes):
            continue
        first, *rest = dotted(node, names).split(".")
        meanings = [".".join([root, *rest]) for root in names.modules_of(first)]
        found = next((full for full in meanings if full in _MODULES), "")
        if found and not any(first in bound_in(function) for function in around):
            yield finding("module", f"module {found} may only be named to reach its parts", node)


def setup_modules(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Clocks and numpy outside the module's own statements and constructors, or parts of them that are not listed."""
    attributes = {id(node) for node in names.outermost_attributes}
    for node, around in _with_functions(tree):
        if id(node) not in attributes:
            continue
        first, *rest = dotted(node, names).split(".")
        for root in names.modules_of(first):
            allowed = SETUP_MODULES.get(root)
            if allowed is None:
                continue
            if not rest or rest[0] not in allowed:
                yield finding("import", f"{root}.{'.'.join(rest)} is not allowed", node)
            elif any(getattr(function, "name", "") != "__init__" for function in around):
                yield finding("import", f"module {root} may be used to set up a candidate, not while it runs", node)


def _is_load(node: ast.AST, attributes: set[int]) -> bool:
    return (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)) or id(node) in attributes


def _with_functions(tree: ast.Module) -> Iterator[tuple[ast.AST, tuple[Function, ...]]]:
    """Every node with the functions around it."""
    waiting: list[tuple[ast.AST, tuple[Function, ...]]] = [(tree, ())]
    while waiting:
        node, around = waiting.pop()
        yield node, around
        inside = (*around, node) if isinstance(node, Function) else around
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def _plainly_named(tree: ast.Module) -> set[int]:
    """Nodes at which a module does no harm: before a dot, in a plain assignment, asked whether it is there."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Subscript)) or _names_a_value(node):
            found.add(id(node.value))
        elif isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            found.add(id(node.left))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found.add(id(node.operand))
        elif isinstance(node, (ast.If, ast.IfExp, ast.Assert)):
            found.add(id(node.test))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "bool"):
            found |= {id(argument) for argument in node.args[:1]}
    return found


def _names_a_value(node: ast.AST) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
