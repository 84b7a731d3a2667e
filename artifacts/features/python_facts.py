"""What the Python side of a source calls: dotted names, keywords and decorators."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_DOTTED = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_KEYWORD = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)")
_SKIPPED = frozenset({"get_inputs", "get_init_inputs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """Counts over one Python source, without the reference ``Model`` and the input makers.

    Attributes:
        names: dotted names used, e.g. ``tl.dot``; a method of an unknown object counts as ``.relu_``.
        keywords: keyword arguments in calls.
        kernels: functions under ``triton.jit``.
        launches: calls of the form ``kernel[grid](...)``.
        in_init: dotted names used inside ``__init__``.
        literals: string literals.
    """

    names: Counter[str] = field(default_factory=Counter)
    keywords: Counter[str] = field(default_factory=Counter)
    kernels: int = 0
    launches: int = 0
    in_init: Counter[str] = field(default_factory=Counter)
    literals: list[str] = field(default_factory=list)


_LEAVES = frozenset({"arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level"}) | {
    *("lineno", "module", "name", "names", "op", "ops", "rest", "simple", "str", "tag", "type_comment"),
}
"""Fields of syntax nodes in which no name, call or literal stands."""


@functools.cache
def _branches(kind: Any) -> tuple[str, ...]:
    """Fields of a type of node that are worth following."""
    return tuple(name for name in kind._fields if name not in _LEAVES and kind is not ast.Constant)


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and all below them that may say something, in no fixed order: several times as fast as ``ast.walk``."""
    waiting: list[Any] = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is None:  # the key of ``**`` in a dictionary, a keyword without default
            continue
        yield node
        for name in _branches(node.__class__):
            value = getattr(node, name, None)
            if type(value) is list:
                waiting += value
            elif value is not None:
                waiting.append(value)


def read_tree(tree: ast.Module) -> PythonFacts:
    """Facts of a parsed source."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    skipped = _SKIPPED | ({"Model"} if "ModelNew" in classes else set())
    of_kind: dict[type[ast.AST], list[Any]] = {kind: [] for kind in (ast.FunctionDef, ast.Call, ast.Attribute)}
    literals: list[str] = []
    for node in _walk(top for top in tree.body if getattr(top, "name", None) not in skipped):
        if isinstance(node, ast.Constant):
            literals += [node.value] if isinstance(node.value, str) else []
        elif type(node) in of_kind:
            of_kind[type(node)].append(node)
    functions, calls = of_kind[ast.FunctionDef], of_kind[ast.Call]
    return PythonFacts(
        names=_names(of_kind[ast.Attribute]),
        keywords=Counter(keyword.arg for call in calls for keyword in call.keywords if keyword.arg),
        kernels=sum(any(map(_is_jit, function.decorator_list)) for function in functions),
        launches=sum(type(call.func) is ast.Subscript for call in calls),
        in_init=_names(_walk(function for function in functions if function.name == "__init__")),
        literals=literals,
    )


def read_text(text: str) -> PythonFacts:
    """The same from text that does not parse, by patterns."""
    return PythonFacts(
        names=Counter(_DOTTED.findall(text)),
        keywords=Counter(_KEYWORD.findall(text)),
        kernels=len(re.findall(r"@triton\.jit[^\n]*\s+def\s+(\w+)", text)),
        launches=len(re.findall(r"\w+\[[^\]\n]+\]\(", text)),
    )


def _names(nodes: Iterable[ast.AST]) -> Counter[str]:
    """Dotted names: of ``a.b.c`` also ``a.b``, which is a node of its own."""
    return Counter(_dotted(node) for node in nodes if type(node) is ast.Attribute)


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute, ``.b.c`` where its head is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _is_jit(decorator: ast.expr) -> bool:
    return _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) == "triton.jit"
