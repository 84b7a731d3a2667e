"""What the Python side of a source calls: dotted names, keywords and decorators."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_DOTTED = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_KEYWORD = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)")
_PLAIN = frozenset(
    [
        *("ctx", "op", "ops", "id", "attr", "name", "arg", "kind", "module", "level", "simple", "conversion"),
        *("is_async", "type_comment", "type_ignores", "names", "asname", "rest", "kwd_attrs"),
    ]
)
_SKIPPED = frozenset({"get_inputs", "get_init_inputs"})


@dataclass(slots=True, kw_only=True)
class PythonFacts:
    """Counts over one Python source, without the reference ``Model`` and the input makers.

    Attributes:
        names: dotted names used, e.g. ``tl.dot``; a method of an unknown object counts as ``.relu_``.
        keywords: keyword arguments in calls.
        kernels: names of functions under ``triton.jit``.
        launches: calls of the form ``kernel[grid](...)``.
        in_init: dotted names used inside ``__init__``.
        literals: string literals in order of appearance.
    """

    names: Counter[str] = field(default_factory=Counter)
    keywords: Counter[str] = field(default_factory=Counter)
    kernels: list[str] = field(default_factory=list)
    launches: int = 0
    in_init: Counter[str] = field(default_factory=Counter)
    literals: list[str] = field(default_factory=list)


def read_tree(tree: ast.Module) -> PythonFacts:
    """Facts of a parsed source, in one walk."""
    facts = PythonFacts()
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    skipped = _SKIPPED | ({"Model"} if "ModelNew" in classes else set())
    stack: list[ast.AST] = [node for node in tree.body if getattr(node, "name", None) not in skipped]
    while stack:
        node = stack.pop()
        kind: Any = type(node)
        reader = _READERS.get(kind)
        if reader is not None:
            reader(node, facts)
        for name in _inner_fields(kind):
            value = getattr(node, name, None)
            if type(value) is list:
                stack += [item for item in value if item is not None]
            elif value is not None:
                stack.append(value)
    facts.literals.reverse()  # the stack meets the last one first
    return facts


def read_text(text: str) -> PythonFacts:
    """The same from text that does not parse, by patterns."""
    facts = PythonFacts(names=Counter(_DOTTED.findall(text)), keywords=Counter(_KEYWORD.findall(text)))
    facts.kernels.extend(re.findall(r"@triton\.jit[^\n]*\s+def\s+(\w+)", text))
    facts.launches = len(re.findall(r"\w+\[[^\]\n]+\]\(", text))
    return facts


@functools.cache
def _inner_fields(kind: Any) -> tuple[str, ...]:
    """Fields of a node that hold nodes worth a visit: most of a tree are contexts, operators and plain values."""
    if kind in (ast.Constant, ast.MatchSingleton):
        return ()
    return tuple(str(name) for name in kind._fields if name not in _PLAIN)


def _read_attribute(node: ast.AST, facts: PythonFacts) -> None:
    if isinstance(node, ast.Attribute):
        facts.names[_dotted(node)] += 1


def _read_call(node: ast.AST, facts: PythonFacts) -> None:
    if isinstance(node, ast.Call):
        facts.keywords.update(keyword.arg for keyword in node.keywords if keyword.arg)
        facts.launches += isinstance(node.func, ast.Subscript)


def _read_function(node: ast.AST, facts: PythonFacts) -> None:
    if isinstance(node, ast.FunctionDef):
        if any(_is_jit(decorator) for decorator in node.decorator_list):
            facts.kernels.append(node.name)
        if node.name == "__init__":
            facts.in_init.update(_dotted(item) for item in ast.walk(node) if isinstance(item, ast.Attribute))


def _read_constant(node: ast.AST, facts: PythonFacts) -> None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        facts.literals.append(node.value)


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute) and _dotted(target) == "triton.jit"


def _dotted(node: ast.Attribute) -> str:
    parts = [node.attr]
    value: ast.expr = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    parts.append(value.id if isinstance(value, ast.Name) else "")
    return ".".join(reversed(parts))


_READERS: Mapping[type[ast.AST], Callable[[ast.AST, PythonFacts], None]] = {
    ast.Attribute: _read_attribute,
    ast.Call: _read_call,
    ast.FunctionDef: _read_function,
    ast.Constant: _read_constant,
}
