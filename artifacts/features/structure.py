"""Features that need the structure of C-family text, from its tree-sitter syntax tree."""

from __future__ import annotations

import bisect
import functools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifacts.features.conduct import SCRATCH, conduct
from artifacts.features.kernels import QUERY

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

_QUERY = """
(comment) @comment
(function_definition) @function
(kernel_call_syntax) @launch
(array_declarator) @array
(for_statement) @loop
(conditional_expression) @select
(binary_expression operator: ["/" "%"]) @division
(if_statement condition: (_) @condition)
(template_parameter_list) @template
(call_expression function: (identifier) @call)
"""

_GRID_STRIDE = re.compile(r"gridDim|\bstride\b|grid_?stride|total_?threads|num_?threads", re.IGNORECASE)
_BLOCK_STRIDE = re.compile(r"\+=\s*(?:blockDim\.x|BLOCK_?SIZE|\w*THREADS\w*|blockSize|NT)\b", re.IGNORECASE)
_HALVING = re.compile(r">>=\s*1|/=\s*2")
_BOUND = re.compile(r"<|>=")
_INDEX = re.compile(r"idx|index|row|col|tid|gid|\bi\b|\bj\b|\bx\b|\by\b|\bk\b", re.IGNORECASE)
_PADDED = re.compile(r"\+\s*(?:1|2|4|8|PAD\w*|\w+_PAD)\s*\]|\b(?:33|17|65)\s*\]", re.IGNORECASE)
_NUMBERED = re.compile(r"\b(?:sum|acc|s|a|val|max)_?[1-3]\s*(?:\+=|=\s*(?:fmaf?|max|fmaxf)\s*\()")
_COUNTED = re.compile(r"[1-3]\s*(?:\+=|=\s*f?ma)")
"""What :data:`_NUMBERED` cannot do without, found faster."""
_BIG = re.compile(r"TILE|BLOCK_?[MNK]|\bB[MNK]\b|\bT\b|\b\d{4,}\b|\*")
_TAIL = re.compile(r"(?i)bias|relu|gelu|silu|sigmoid|tanh|scale|clamp|fmaxf?\s*\(\s*0|fmaxf?\s*\([^;]*,\s*0")
_SPANS = re.compile(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])*+'?|/\*.*?\*/|/\*", re.DOTALL)
"""Comments and literals; a comment that never ends is its beginning alone, a literal ends with its line."""
_ATTRIBUTES = re.compile(rb"__cluster_dims__\s*\([^)]*\)|__grid_constant__")
"""Unknown to the grammar, which then sees no function."""
_MOST_LAUNCHES = 50
_DEEPEST = 1000
"""Nesting of syntax nodes that is looked at: the query's cost grows with the square of what is nested."""
_BROKEN_LIMIT = 40_000
"""Bytes looked at of what does not parse, where the cost grows with the square as well."""
_LONGEST_HEAD = 20_000
"""Bytes in front of a body beyond which nobody wrote it by hand."""
_MOST_LOOKED_AT = 4_000_000
"""Bytes of bodies and declarations looked at in one text: nested ones would be read as often as they are deep."""
_FLOATS = re.compile(r"\b(?:float|double|half|__half|scalar_t|accscalar_t|T|int)\s+\w+\s*(?:\[[^\]]+\]){1,2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What the syntax tree of one C-family text says."""

    text: str
    counts: Counter[str]
    kernels: int


@functools.cache
def _tools() -> tuple[Parser, Query]:
    import tree_sitter
    import tree_sitter_cuda

    language = tree_sitter.Language(tree_sitter_cuda.language())
    return tree_sitter.Parser(language), tree_sitter.Query(language, _QUERY + QUERY)


def read_structure(source: str) -> Structure:
    """Parse C-family ``source`` and count structural features; ``text`` is the source without comments."""
    import tree_sitter

    parser, query = _tools()
    data = _closed(source).encode("utf-8", "replace")
    cursor = tree_sitter.QueryCursor(query)
    cursor.set_max_start_depth(_DEEPEST)
    plain = (
        _ATTRIBUTES.sub(lambda found: b" " * len(found[0]), data) if b"__cluster" in data or b"__grid" in data else data
    )
    root = parser.parse(plain).root_node
    if root.has_error and len(data) > _BROKEN_LIMIT:
        root = parser.parse(plain[:_BROKEN_LIMIT]).root_node
    captures = cursor.captures(root)
    counts: Counter[str] = Counter()
    kernels = _functions(data, captures.get("function", []), counts)
    _arrays(data, captures.get("array", []), counts)
    _loops(data, captures.get("loop", []), counts)
    _expressions(data, captures, counts)
    launches = captures.get("launch", [])
    if len(launches) > 1:
        counts["multiple_launches"] = len(launches)
    if _successive(data, [*launches, *_launch_calls(data, captures.get("call", []))]):
        counts["successive_launches"] = 1
    counts.update(conduct(_blanked(data, captures.get("comment", [])), captures))
    return Structure(text=_without(data, captures.get("comment", [])), counts=counts, kernels=kernels)


def _closed(source: str) -> str:
    """``source`` up to a comment that never ends: for each of its words the parser would look for the end once more."""
    if source.rfind("/*") > source.rfind("*/"):
        for found in _SPANS.finditer(source):
            if found[0] == "/*":
                return source[: found.start()]
    return source


def _blanked(data: bytes, comments: list[Node]) -> bytes:
    """``data`` with blanks for comments, so that places stay."""
    text = bytearray(data)
    for node in comments:
        text[node.start_byte : node.end_byte] = b" " * (node.end_byte - node.start_byte)
    return bytes(text)


def _without(data: bytes, comments: list[Node]) -> str:
    kept: list[bytes] = []
    start = 0
    for node in sorted(comments, key=lambda item: item.start_byte):
        if node.start_byte >= start:
            kept.append(data[start : node.start_byte])
            start = node.end_byte
    kept.append(data[start:])
    return b" ".join(kept).decode("utf-8", "replace")


def _slice(data: bytes, node: Node) -> str:
    return data[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _functions(data: bytes, nodes: list[Node], counts: Counter[str]) -> int:
    """How many of the functions are kernels."""
    kernels = 0
    left = _MOST_LOOKED_AT
    for node in sorted(nodes, key=lambda item: item.start_byte):  # captures come in no fixed order
        body = node.child_by_field_name("body")
        head = data[node.start_byte : body.start_byte if body is not None else node.end_byte]
        left -= len(head)
        if b"__global__" not in head:
            continue
        kernels += 1
        if body is not None and left > 0:
            left -= body.end_byte - body.start_byte
            _kernel_body(_slice(data, body), counts)
    return kernels


def _kernel_body(body: str, counts: Counter[str]) -> None:
    if "for" in body and "+=" in body:
        tail = body[body.rfind("for") :]
        if _TAIL.search(tail, tail.find("}") + 1):
            counts["fused_epilogue"] += 1
    if _COUNTED.search(body) and _NUMBERED.search(body):
        counts["multiple_accumulators"] += 1


def _arrays(data: bytes, nodes: list[Node], counts: Counter[str]) -> None:
    left = _MOST_LOOKED_AT
    for node in nodes:
        owner = node.parent
        if owner is None or owner.type == "array_declarator":
            continue
        declaration = owner if owner.type == "declaration" else owner.parent
        if declaration is None or declaration.type != "declaration":
            continue
        left -= node.end_byte - declaration.start_byte
        if left < 0:
            break
        head = data[declaration.start_byte : node.start_byte]
        text = _slice(data, node)
        if b"__shared__" in head:
            counts["bank_conflict_padding"] += bool(_PADDED.search(text))
            counts["cache_blocking"] += text.count("[") > 1
            tile = text.count("[") > 1 or _BIG.search(text) is not None
            counts["staged_tile"] += tile and SCRATCH.search(text) is None
        elif b"__constant__" not in head and _FLOATS.search(head.decode("utf-8", "replace") + text):
            counts["register_tiling"] += 1


def _loops(data: bytes, nodes: list[Node], counts: Counter[str]) -> None:
    barriers = [match.start() for match in re.finditer(rb"__syncthreads", data)] if nodes else []
    for node in nodes:
        body = node.child_by_field_name("body")
        end = body.start_byte if body is not None else node.end_byte
        if end - node.start_byte > _LONGEST_HEAD:
            continue
        head = data[node.start_byte : end].decode("utf-8", "replace")
        update = head.rsplit(";", 1)[-1]
        if "+=" in update and _GRID_STRIDE.search(update):
            counts["grid_stride_loop"] += 1
        elif _BLOCK_STRIDE.search(update):
            counts["block_stride_loop"] += 1
        elif _HALVING.search(update) and body is not None and _any_within(barriers, body):
            counts["block_reduce"] += 1
        elif re.search(r"<\s*(?:\d{1,2}|\w*(?:PER_THREAD|VEC|ITEMS|COARSE|TM|TN)\w*)\s*;", head):
            counts["thread_coarsening"] += 1


def _launch_calls(data: bytes, names: list[Node]) -> list[Node]:
    """Calls that launch a kernel by name."""
    return [node for node in names if data[node.start_byte : node.end_byte] == b"cudaLaunchKernelEx"]


def _successive(data: bytes, launches: list[Node]) -> bool:
    """Whether two of the launches of one function run one after another, not one instead of the other."""
    paths = [_path(node) for node in launches[:_MOST_LAUNCHES]]
    for i, (function, branches) in enumerate(paths):
        for other, others in paths[i + 1 :]:
            exclusive = any(branch != others[at] for at, branch in branches.items() if at in others)
            if function == other and not exclusive:
                return True
    return False


def _path(node: Node) -> tuple[int, dict[int, int]]:
    """Start of the function around a launch, and for each ``if`` around it which side it is on."""
    branches: dict[int, int] = {}
    child, parent = node, node.parent
    while parent is not None and parent.type != "function_definition":
        if parent.type == "if_statement":
            branches[parent.start_byte] = child.start_byte
        child, parent = parent, parent.parent
    return (-1 if parent is None else parent.start_byte), branches


def _any_within(places: list[int], node: Node) -> bool:
    at = bisect.bisect_left(places, node.start_byte)
    return at < len(places) and places[at] < node.end_byte


def _expressions(data: bytes, captures: dict[str, list[Node]], counts: Counter[str]) -> None:
    counts["predication"] += len(captures.get("select", []))
    counts["template_constants"] += sum(
        data.find(b"int", node.start_byte, node.end_byte) >= 0
        or data.find(b"bool", node.start_byte, node.end_byte) >= 0
        for node in captures.get("template", [])
    )
    for node in captures.get("condition", []):
        text = _short(data, node, 200)
        if text and _BOUND.search(text) and _INDEX.search(text):
            counts["boundary_check"] += 1
    for node in captures.get("division", []):
        text = _short(data, node, 80)
        if text and _INDEX.search(text) and "." not in text.replace("blockIdx.", "").replace("threadIdx.", ""):
            counts["division_modulo"] += 1


def _short(data: bytes, node: Node, limit: int) -> str:
    """Text of ``node``; empty when it has ``limit`` characters or more, so that nested ones cost no more than one."""
    if node.end_byte - node.start_byte >= 4 * limit:
        return ""
    text = _slice(data, node)
    return text if len(text) < limit else ""
