"""What the Python side of a source calls: dotted names, keywords and decorators."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

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


def read_tree(tree: ast.Module) -> PythonFacts:
    """Facts of a parsed source."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    skipped = _SKIPPED | ({"Model"} if "ModelNew" in classes else set())
    nodes = [node for top in tree.body if getattr(top, "name", None) not in skipped for node in ast.walk(top)]
    functions = [node for node in nodes if type(node) is ast.FunctionDef]
    calls = [node for node in nodes if type(node) is ast.Call]
    return PythonFacts(
        names=_names(nodes),
        keywords=Counter(keyword.arg for call in calls for keyword in call.keywords if keyword.arg),
        kernels=sum(any(map(_is_jit, function.decorator_list)) for function in functions),
        launches=sum(type(call.func) is ast.Subscript for call in calls),
        in_init=_names(node for function in functions if function.name == "__init__" for node in ast.walk(function)),
        literals=[node.value for node in nodes if type(node) is ast.Constant and type(node.value) is str],
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
