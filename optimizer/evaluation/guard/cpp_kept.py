"""Tensors in C++ that outlive a call, by themselves or inside something that holds one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from optimizer.evaluation.guard.cpp_text import balanced, top_level

_MESSAGE = "a tensor is kept between calls"
_HOLDERS = {"Tensor", "TensorImpl", "StorageImpl", "IValue", "PyObject"}
"""Types through which a tensor can be had back, known by their last name."""
_QUALIFIED = (
    r"\b(?:py(?:bind11)?\s*::\s*(?:object|dict|list|tuple|handle)|std\s*::\s*any|(?:c10|at|torch)\s*::\s*Storage)\b"
)
"""The same where that name alone says little."""
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=([^;(]*);|\btypedef\b([^;(]*?)(\w+)\s*;")
_CLASS = re.compile(r"\b(?:struct|class|union)\s+(\w+)\s*(?:final\s*)?(?::[^;{}()]*)?\{")
_INNER = re.compile(r"\([^()]*\)|\{[^{}]*\}")
_MADE = (
    r"(?:\b(?:torch|at)\s*::\s*(?:empty|zeros|ones|full|rand|tensor|from_blob|scalar_tensor)\w*|\bTensor|"
    r"\.\s*(?:clone|contiguous|detach|to|new_\w+))\s*\("
)
"""Calls that give a tensor."""
_KEPT_AUTO = re.compile(rf"\b(?:static|thread_local)\b(?:\s+const)?\s+auto\b[^;=(]*=[^;]*?{_MADE}")


def kept_tensors(code: str) -> Iterator[tuple[str, str, int]]:
    """Rule, message and offset of each variable that lives on and may hold a tensor.

    Args:
        code: C++ without comments and literals.
    """
    holder = rf"(?:\b(?:{'|'.join(sorted(_holders(code)))})\b|{_QUALIFIED})"
    # Ends at the first bracket: a function's declaration is told from a variable by what stands there.
    kept = re.compile(rf"\b(?:static|thread_local)\b[^;{{}}()]*{holder}[^;{{}}()]*[;({{=]")
    for match in kept.finditer(code):
        if not _is_function(code, match):
            yield "cache", _MESSAGE, match.start()
    for pattern in (_KEPT_AUTO, re.compile(rf"\bnew\s+(?:\w+\s*::\s*)*{holder}")):
        for match in pattern.finditer(code):
            yield "cache", _MESSAGE, match.start()
    for offset, statement in top_level(code):
        declares = "(" not in statement and not re.match(r"\s*(?:using|typedef|struct|class|union|friend)\b", statement)
        if declares and re.search(holder, statement):
            yield "cache", _MESSAGE, offset


def _holders(code: str) -> set[str]:
    """Types that hold a tensor: known ones, other names for them, and classes with such members."""
    found = set(_HOLDERS)
    parts = [(match[1] or match[4], match[2] or match[3]) for match in _ALIAS.finditer(code)]
    parts += [(match[1], _members(balanced(code, match.end() - 1, "{}"))) for match in _CLASS.finditer(code)]
    while more := {name for name, text in parts if name not in found and found & set(re.findall(r"\w+", text))}:
        found |= more
    return found


def _members(body: str) -> str:
    """A class's own variables: functions and what stands in their bodies are left out."""
    inside, before = body[1:-1], ""
    while inside != before:
        before, inside = inside, _INNER.sub(lambda match: "@" if match.group().startswith("(") else ";", inside)
    return ";".join(part for part in inside.split(";") if "@" not in part)


def _is_function(code: str, match: re.Match[str]) -> bool:
    """Whether the match is a static function: a parameter list with a type inside, or an empty one and a body."""
    if not match.group().endswith("("):
        return False
    inside = code[match.end() : code.find(")", match.end())]
    after = code[match.end() + len(inside) + 1 :].lstrip()
    return after.startswith("{") or (after.startswith(";") and bool(re.search(r"\w[\s&*]+\w", inside)))
