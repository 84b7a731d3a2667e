"""Threads in C++: none that stay, and in none an operator of torch, since the run-time guard hears one thread only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from optimizer.evaluation.guard.cpp_text import balanced
from optimizer.evaluation.guard.tables import TORCH_MOVES

_REGION = re.compile(r"#[ \t]*pragma[ \t]+omp\b[^\n]*|\b_Pragma\s*\([^)]*\)|\bparallel_(?:for|reduce)\b(?=[\s<(])")
_THREAD = re.compile(r"\bstd\s*::\s*(?:j?thread\b(?!\s*::\s*hardware_concurrency)|async\b|future\b)")
_JOINED = re.compile(r"\.\s*join\s*\(\s*\)")
_AWAITED = re.compile(r"\.\s*(?:get|wait)\s*\(\s*\)")
_STAYS = re.compile(
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
        if not joined or _STAYS.search(body):
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
