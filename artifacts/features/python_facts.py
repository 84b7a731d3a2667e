"""What the Python side of a source calls: dotted names, keywords and decorators."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
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
_LEAVES = frozenset(
    [
        *(type(None), ast.Name, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal),
        *(ast.Import, ast.ImportFrom, ast.MatchSingleton),
    ]
)
"""Kinds of nodes that tell nothing and hold nothing: half of a tree."""


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
    _walk([node for node in tree.body if getattr(node, "name", None) not in skipped], facts, facts.names)
    facts.literals.reverse()  # the stack meets the last one first
    return facts


def _walk(stack: list[ast.AST], facts: PythonFacts, names: Counter[str]) -> None:
    """Read whatever is below the nodes of ``stack``, the last one first; their dotted names go into ``names``."""
    dotted: list[str] = []
    keywords: list[str] = []
    while stack:
        node = stack.pop()
        kind: Any = type(node)
        if kind is ast.Attribute:
            _read_attribute(node, dotted, stack)
        elif kind is ast.Call:
            _read_call(node, facts, keywords, stack)
        elif kind is ast.Constant:
            _read_constant(node, facts)
        elif kind is not ast.FunctionDef or _enters(node, facts, names):
            _push_fields(node, kind, stack)
    names.update(dotted)
    facts.keywords.update(keywords)


def read_text(text: str) -> PythonFacts:
    """The same from text that does not parse, by patterns."""
    facts = PythonFacts(names=Counter(_DOTTED.findall(text)), keywords=Counter(_KEYWORD.findall(text)))
    facts.kernels.extend(re.findall(r"@triton\.jit[^\n]*\s+def\s+(\w+)", text))
    facts.launches = len(re.findall(r"\w+\[[^\]\n]+\]\(", text))
    return facts


def _push_fields(node: ast.AST, kind: Any, stack: list[ast.AST]) -> None:
    """Put what ``node`` holds on the stack, the last field on top."""
    for name in _inner_fields(kind):
        value = getattr(node, name, None)
        if type(value) is list:
            for item in value:
                if type(item) not in _LEAVES:
                    stack.append(item)
        elif type(value) not in _LEAVES:
            stack.append(value)  # type: ignore[arg-type]  # fields that hold no nodes are left out


@functools.cache
def _inner_fields(kind: Any) -> tuple[str, ...]:
    """Fields of a node that hold nodes worth a visit: most of a tree are contexts, operators and plain values."""
    return tuple(str(name) for name in kind._fields if name not in _PLAIN)


def _read_attribute(node: Any, dotted: list[str], stack: list[ast.AST]) -> None:
    """``a.b.c`` counts as itself and as ``a.b``; what is no name at its head is read on."""
    parts: list[str] = []
    while type(node) is ast.Attribute:
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if type(node) is ast.Name else "")
    if type(node) not in _LEAVES:
        stack.append(node)
    parts.reverse()
    while len(parts) > 1:
        dotted.append(".".join(parts))
        parts.pop()


def _read_call(node: Any, facts: PythonFacts, keywords: list[str], stack: list[ast.AST]) -> None:
    called = node.func
    if type(called) not in _LEAVES:
        facts.launches += type(called) is ast.Subscript
        stack.append(called)
    for item in node.args:
        if type(item) not in _LEAVES:
            stack.append(item)
    for keyword in node.keywords:
        if keyword.arg:
            keywords.append(keyword.arg)
        if type(keyword.value) not in _LEAVES:
            stack.append(keyword.value)


def _read_constant(node: Any, facts: PythonFacts) -> None:
    if type(node.value) is str:
        facts.literals.append(node.value)


def _enters(node: Any, facts: PythonFacts, names: Counter[str]) -> bool:
    """Note a function; whether its inside is still to be read."""
    if any(_is_jit(decorator) for decorator in node.decorator_list):
        facts.kernels.append(node.name)
    if node.name != "__init__":
        return True
    inside: Counter[str] = Counter()
    stack: list[ast.AST] = []
    _push_fields(node, ast.FunctionDef, stack)
    _walk(stack, facts, inside)
    names.update(inside)
    facts.in_init.update(inside)
    return False


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (
        isinstance(target, ast.Attribute)
        and target.attr == "jit"
        and isinstance(target.value, ast.Name)
        and target.value.id == "triton"
    )
