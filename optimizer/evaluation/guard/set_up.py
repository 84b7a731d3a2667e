"""What may run before there are inputs, and what becomes of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.languages import LANGUAGES
from optimizer.evaluation.guard.names import Function, Names, bound_in, dotted
from optimizer.evaluation.guard.python_rules import finding
from optimizer.evaluation.guard.tables import CALLED_BY_TORCH, HARMLESS_PARTS, MODULES, SETUP_MODULES

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
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node, around in _with_functions(tree):
        if name := _name(node):
            yield _Mention(name, id(node) in called, around[-1] if around else None)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else ""


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
        first = dotted(node).partition(".")[0]
        found = next((full for full in names.meanings_of(node) if full in _MODULES), "")
        if found and not any(first in bound_in(function) for function in around):
            yield finding("module", f"module {found} may only be named to reach its parts", node)


def setup_modules(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Clocks and numpy outside the module's own statements and constructors, or parts of them that are not listed."""
    attributes = {id(node) for node in names.outermost_attributes}
    attributes -= {one for language in LANGUAGES for one in language.arrays(tree, names)}
    early = before_inputs(tree)
    for node, around in _with_functions(tree):
        if id(node) not in attributes:
            continue
        first, *rest = dotted(node).split(".")
        for root in names.meanings.get(first, ()):
            allowed = SETUP_MODULES.get(root)
            if allowed is None:
                continue
            if not rest or rest[0] not in allowed:
                yield finding("import", f"{root}.{'.'.join(rest)} is not allowed", node)
            elif any(function not in early and getattr(function, "name", "") != "__init__" for function in around):
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
