"""What outlives a call in C++: tensors that are kept, threads that stay."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

from optimizer.evaluation.guard.cpp_text import balanced, top_level
from optimizer.evaluation.guard.tables import TORCH_MOVES

_MESSAGE = "a tensor is kept between calls"
_HOLDERS = {"Tensor", "TensorImpl", "StorageImpl", "IValue", "PyObject"}
"""Types through which a tensor can be had back, known by their last name."""
_QUALIFIED = (
    r"\b(?:py(?:bind11)?\s*::\s*(?:object|dict|list|tuple|handle)|std\s*::\s*any|(?:c10|at|torch)\s*::\s*Storage)\b"
)
"""The same where that name alone says little."""
_STAYS = re.compile(r"\b(?:static|thread_local)\b")
_NAMES = re.compile(r"\b(?:using|typedef)\b")
_CLASS = re.compile(r"\b(?:struct|class|union)\s+(\w+)")
_HEIR = re.compile(r"\s*(?:final\s*)?(?::.*)?", re.DOTALL)
_INNER = re.compile(r"\([^()]*\)|\{[^{}]*\}")
_AUTO = re.compile(r"\s*(?:const\s+|constexpr\s+)?auto\b[^=]*=")
_MADE = re.compile(
    r"\b(?:torch|at)\s*::\s*(?:empty|zeros|ones|full|rand|tensor|from_blob|scalar_tensor)\w*\s*\(|\bTensor\s*\(|"
    r"\.\s*(?:clone|contiguous|detach|to|new_\w+)\s*\("
)
"""Calls that give a tensor."""
_MOST_TEXT = 1 << 21
_LONGEST_HEAD = 1000
_DEEPEST = 50
"""Characters of classes that are looked into, between a class's name and its body, and brackets in brackets: more is
nobody's code."""


def kept_tensors(code: str) -> Iterator[tuple[str, str, int]]:
    """Rule, message and offset of each variable that lives on and may hold a tensor.

    Args:
        code: C++ without comments and literals.
    """
    holder = re.compile(rf"\b(?:{'|'.join(sorted(_holders(code)))})\b|{_QUALIFIED}")
    made = re.compile(rf"\bnew\s+(?:\w+\s*::\s*)*(?:{holder.pattern})")
    found = [start for start, text, end in _pieces(code, _STAYS, ";{}()") if _is_kept(code, text, end, holder)]
    found += [start for start, text, _ in _pieces(code, _STAYS, ";") if _AUTO.match(text) and _MADE.search(text)]
    found += [match.start() for match in made.finditer(code)]
    for offset, statement in top_level(code):
        declares = "(" not in statement and not re.match(r"\s*(?:using|typedef|struct|class|union|friend)\b", statement)
        if declares and holder.search(statement):
            found.append(offset)
    for offset in found:
        yield "cache", _MESSAGE, offset


def _pieces(code: str, begins: re.Pattern[str], ends: str) -> Iterator[tuple[int, str, int]]:
    """Start, text behind the beginning, and end of each piece; one that begins inside another is part of that."""
    stop = re.compile(f"[{re.escape(ends)}]")
    place = 0
    while match := begins.search(code, place):
        end = stop.search(code, match.end())
        place = end.start() if end else len(code)
        yield match.start(), code[match.end() : place], place


def _is_kept(code: str, text: str, end: int, holder: re.Pattern[str]) -> bool:
    """Whether what begins with ``static`` declares a variable that holds a tensor."""
    found = holder.search(text)
    if found is None:
        return False
    if "=" in text[found.end() :] or code[end : end + 1] in (";", "{"):
        return True
    return code[end : end + 1] == "(" and not _is_function(code, end)


def _is_function(code: str, opening: int) -> bool:
    """Whether a parameter list begins there: with a type inside, or empty and with a body."""
    inside = code[opening + 1 : code.find(")", opening)]
    after = code[opening + len(inside) + 2 :][:200].lstrip()
    return after.startswith("{") or (after.startswith(";") and bool(re.search(r"\w[\s&*]+\w", inside)))


def _holders(code: str) -> set[str]:
    """Types that hold a tensor: known ones, other names for them, and classes with such members."""
    parts = [(name, set(re.findall(r"\w+", text))) for name, text in (*_aliases(code), *_classes(code))]
    found = set(_HOLDERS)
    while more := {name for name, words in parts if name not in found and found & words}:
        found |= more
    return found


def _aliases(code: str) -> Iterator[tuple[str, str]]:
    """Other names for types, with what they stand for; types of functions hold nothing."""
    for start, text, _ in _pieces(code, _NAMES, ";"):
        if "(" in text:
            continue
        if code.startswith("using", start):
            name, _, meaning = text.partition("=")
        else:
            words = text.split()
            name, meaning = (words[-1], " ".join(words[:-1])) if words else ("", "")
        if name.strip().isidentifier():
            yield name.strip(), meaning


def _classes(code: str) -> Iterator[tuple[str, str]]:
    """Classes with their own variables: functions and what stands in their bodies are left out."""
    stops = [match.start() for match in re.finditer(r"[;{}()]", code)]
    left = _MOST_TEXT
    for match in _CLASS.finditer(code):
        place = bisect_left(stops, match.end())
        end = stops[place] if place < len(stops) else len(code)
        if code[end : end + 1] != "{" or end > match.end() + _LONGEST_HEAD or left < 0:
            continue
        if _HEIR.fullmatch(code, match.end(), end):
            body = balanced(code, end, "{}")
            left -= len(body)
            yield match[1], _members(body)


def _members(body: str) -> str:
    inside = body[1:-1]
    for _ in range(_DEEPEST):
        before, inside = inside, _INNER.sub(lambda match: "@" if match.group().startswith("(") else ";", inside)
        if inside == before:
            break
    return ";".join(part for part in inside.split(";") if "@" not in part)


_REGION = re.compile(r"#[ \t]*pragma[ \t]+omp\b[^\n]*|\b_Pragma\s*\([^)]*\)|\bparallel_(?:for|reduce)\b(?=[\s<(])")
_THREAD = re.compile(r"\bstd\s*::\s*(?:j?thread\b(?!\s*::\s*hardware_concurrency)|async\b|future\b)")
_JOINED = re.compile(r"\.\s*join\s*\(\s*\)")
_AWAITED = re.compile(r"\.\s*(?:get|wait)\s*\(\s*\)")
_CPP_THREADS_STAYS = re.compile(
    r"\b(?:detach|static|thread_local|new|malloc|release|swap|move|shared_ptr|unique_ptr|make_unique|make_shared|"
    r"native_handle|struct|class|using|typedef)\b|\breturn\s+std\s*::"
)
_OPERATOR = re.compile(
    r"\b(?:torch|at)\s*::\s*([a-z_]\w*)\s*\(|(?:\.|->)\s*(matmul|mm|bmm|addmm|softmax|log_softmax|cumsum|einsum|topk)\s*\("
)
_NOT_OPERATORS = """parallel_for parallel_reduce get_num_threads get_thread_num in_parallel_region divup dtype options
    requires_grad layout pinned_memory intra_op_default_num_threads from_blob ceil_div round_up scalar_type"""
_NO_OPERATORS = TORCH_MOVES.union(_NOT_OPERATORS.split())
_FUNCTION = re.compile(r"\b(\w+)\s*\((?:[^;{}()]|\([^()]*\))*\)\s*(?:const\s*)?(?:->\s*[\w:<>]+\s*)?\{")
_CALL = re.compile(r"\b(\w+)\s*\(")


def operators_in_threads(code: str) -> Iterator[tuple[str, str, int]]:
    """Rule, message and offset of each operator in a parallel region, or in a function that is called there.

    Args:
        code: C++ without comments and literals.
    """
    users = _users(code)
    for match in _REGION.finditer(code):
        region = _region(code, match.end())
        found = next(_operators(region), "") or next((name for name in _CALL.findall(region) if name in users), "")
        if found:
            yield "thread", f"{found}, an operator of torch, in a parallel region is not allowed", match.start()


def threads(code: str) -> Iterator[tuple[str, str, int]]:
    """Rule, message and offset of each thread that may go on after its function has returned.

    Those a function starts and joins are its own business, like a parallel region. A thread at file level, in a class
    or on the heap may stay, and so may one of a function that holds static variables or never joins.
    """
    bodies = [(match.end() - 1, balanced(code, match.end() - 1, "{}")) for match in _FUNCTION.finditer(code)]
    users = _users(code)
    for match in _THREAD.finditer(code):
        body = next((body for start, body in bodies if start <= match.start() < start + len(body)), "")
        ends = _JOINED if match.group().endswith("thread") else _AWAITED
        joined = ends.search(body) is not None or "jthread" in match.group()
        if not joined or _CPP_THREADS_STAYS.search(body):
            yield (
                "thread",
                f"{match.group()} may go on after the call: join or await it in the function that starts it",
                match.start(),
            )
        elif next(_operators(body), "") or users & set(_CALL.findall(body)):
            yield "thread", "an operator of torch beside threads is not allowed", match.start()


def has_threads(code: str) -> bool:
    """Whether the text names the thread that a library asks for."""
    return _THREAD.search(code) is not None


def _operators(text: str) -> Iterator[str]:
    for match in _OPERATOR.finditer(text):
        name = match[1] or match[2]
        if name not in _NO_OPERATORS:
            yield name


def _users(code: str) -> set[str]:
    """Functions of the source in which operators are called, by themselves or by functions that they call."""
    bodies = {match[1]: balanced(code, match.end() - 1, "{}") for match in _FUNCTION.finditer(code)}
    users = {name for name, body in bodies.items() if next(_operators(body), "")}
    while more := {name for name, body in bodies.items() if name not in users and users & set(_CALL.findall(body))}:
        users |= more
    return users


def _region(code: str, start: int) -> str:
    """What runs in parallel: the call's arguments, or the statement after a pragma."""
    opening = re.compile(r"[({;]").search(code, start)
    if opening is None:
        return code[start:]
    if opening.group() == "{":
        return balanced(code, opening.start(), "{}")
    if opening.group() == ";":
        return code[start : opening.start()]
    inside = balanced(code, opening.start(), "()")
    before = code[start : opening.start()]
    return before + inside + _region(code, opening.start() + len(inside)) if before.strip() else inside
