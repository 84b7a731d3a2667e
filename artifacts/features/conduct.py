"""What kernels do, read from their statements and from where values come from, not from how they are named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

QUERY = """
(while_statement) @while
(do_statement) @while
(if_statement) @branch
(init_declarator value: (lambda_expression)) @lambda
"""
"""Captures beside those of the structure."""

_LONGEST = 60_000
"""Characters of a kernel looked at; the longest of the shipped ones has 30,000."""
_MOST = 400
"""Statements of a kind, and steps from a name to what it is made of, that are followed in one kernel."""

_COPY = re.compile(r"cp\.async(?!\.(?:wait|commit|mbarrier|bulk\.(?:wait|commit|prefetch)))|memcpy_async")
_WAIT = re.compile(r"mbarrier\S*(?:try|test)_wait|cp\.async\.wait|pipeline_wait_prior|consumer_wait|producer_acquire")
_SIGNAL_WAIT = re.compile(r"mbarrier\S*(?:try|test)_wait|\bbar\.sync|barrier\.sync|consumer_wait|producer_acquire")
_SHUFFLE = re.compile(r"__shfl_\w+|__reduce_\w+_sync")
_PRODUCT = re.compile(r"\bmma\.sync|\bwgmma\.mma|mma_sync|tcgen05\.mma")
_REDUCE = re.compile(
    r"__shfl_(?:xor|down)\w*\([^;]{0,80},\s*(?:[A-Za-z_]\w*|16|8|4)\s*\)|__reduce_\w+_sync|\b(?:Warp|Block)Reduce\b"
)
"""Exchange over a distance that changes or is long; neighbours exchange for other ends."""
_RESIDENT = re.compile(r"multiProcessorCount|MultiProcessorCount|cudaOccupancyMaxActive")
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_SET = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)\s*([^;]{1,300}?)\s*(?=;|,\s*\w+\s*=[^=]|\)\s*\{)")
_PER_WARP = re.compile(r"\b(?:threadIdx\.x|\w+)\s*(?:>>\s*5\b|/\s*(?:32|warpSize|WARP_?SIZE)\b)")
_ARRAY = re.compile(r"\b(?:float|double|half|int|unsigned|T|scalar_t|u?int\d*(?:_t)?|float\d|uint\d|__\w+)\s+(\w+)\s*\[")
_SHARED = re.compile(r"__shared__[^;=]*?\b(\w+)\s*(?:\[[^\]]*\])+\s*[;,={]")
_ELEMENT = re.compile(r"\b([A-Za-z_]\w*)\s*((?:\[[^\[\]]{1,120}\])+)(\.\w)?\s*=(?!=)\s*([^;]{1,300});")
_USE = r"\b{}\s*\[[^;=]{{0,80}}\](?!\s*=[^=])"
_LOAD = re.compile(r"^(?:\([^()]*\)\s*\?\s*|\w+\s*\?\s*)?(?:__ld\w*|ld\w*|\w*[lL]oad\w*|\*\s*reinterpret_cast)\s*[<(]")
_PLAIN = re.compile(r"^(?:\([^()]*\)\s*\?\s*)?(?:\w+\s*\(\s*)?([A-Za-z_]\w*)\s*(\[|(?:\.\w)?\s*\)?$)")
"""One name, an element or a member of it, as it is or as the argument of one function."""
_TAKEN = re.compile(r"\b\w*[lL]oad\w*\s*(?:<[^<>;]{0,40}>\s*)?\(\s*([A-Za-z_]\w*)\b")
"""A call that loads into its first argument."""
_STEPPED = re.compile(r"\b([A-Za-z_]\w*)\s*\+=\s*([^;()]{1,80}(?:\([^;()]*\))?[^;()]{0,40})")
_ADDED = re.compile(r"\b[A-Za-z_]\w*\s*=(?!=)\s*\(?\s*([A-Za-z_]\w*)\s*\+\s*([^;]{1,80})\s*;")
_DIVIDED = re.compile(r"/\s*([A-Za-z_]\w*|gridDim\.\w)")
_BACK = re.compile(
    r"-\s*(?:__half2float|__bfloat162float|__half22float2|__low2float|__high2float|__uint_as_float)\s*\("
    r"|\b(\w*(?:tf32|half|bf16|bfloat16)\w*)\s*\(\s*[\w.]+(?:\[\w+\])?\s*-\s*[\w.]+(?:\[\w+\])?\s*[,)]"
)
"""What rounding to a shorter number left over."""
_BACK_TO_FLOAT = re.compile(r"__half2float|__bfloat162float|__half22float2|__low2float|__high2float|tf32")
_LISTED = re.compile(r"\b(\w+)\s*\[\w*\]\s*=\s*\{([^{};]{1,300})\}")
_LESS = re.compile(r"\b[\w.]+(?:\[\w+\])?\s*-\s*([A-Za-z_]\w*)\b")
_FLIPPED = re.compile(r"\b(\w+)\s*\^=?\s*1\b")
_PINGPONG = tuple(
    re.compile(pattern)  # each begins with plain text, by which ``re`` finds the few places worth a closer look
    for pattern in (
        r"1\s*-\s*(?:buf|cur|stage|read|write)",
        r"ping(?<!\wping)",
        r"\(\s*\w+\s*\+\s*1\s*\)\s*%\s*2",
        r"&\s*1\s*\]",
    )
)
_GROUPED = re.compile(r"\b(\w+)\s*=\s*(?:::|std::)?min\s*\(\s*(?:\w+\s*,\s*\w+\s*-\s*[^;,]{1,40}|\w+\s*-\s*[^;,]{1,40},\s*\w+)\)\s*;")
_MERGED = re.compile(r"exp\w*\s*\(\s*-?\s*(?:fabsf?\s*\(\s*)?([\w.]+)\s*-\s*([\w.]+)\s*\)")
_DELTA = re.compile(r"\b(\w+)\s*=\s*(\w+)\s*-\s*(\w+)\s*;")


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a kernel: where it begins and ends in the text, and what it says."""

    start: int
    end: int
    text: str

    def holds(self, other: _Part) -> bool:
        return self.start <= other.start and other.end <= self.end and self is not other


@dataclass(frozen=True, slots=True)
class _Branch:
    """An ``if`` of a kernel."""

    condition: str
    then: _Part
    otherwise: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    body: _Part
    loops: tuple[_Part, ...]
    branches: tuple[_Branch, ...]
    made: Mapping[str, str]

    def reach(self, expression: str) -> str:
        """``expression`` and what the names in it were first set to, and so on."""
        seen: dict[str, None] = {}
        pending = _NAME.findall(expression)
        parts = [expression]
        while pending and len(seen) < _MOST:
            name = pending.pop()
            if name not in seen:
                seen[name] = None
                parts.append(self.made.get(name, ""))
                pending.extend(_NAME.findall(parts[-1]))
        return " ".join(parts)


def conduct(data: bytes, captures: Mapping[str, list[Node]]) -> Counter[str]:
    """Code features of the kernels in ``data``, C-family text in which comments are blanks."""
    counts: Counter[str] = Counter()
    functions = dict(_functions(data, captures))
    whole = data[: 4 * _LONGEST].decode("utf-8", "replace")
    sized = _RESIDENT.search(whole) is not None
    copies, waits = _doing(functions, _COPY), _doing(functions, _WAIT)
    signals, reduces = _doing(functions, _SIGNAL_WAIT), _doing(functions, _REDUCE)
    shuffles, products = _doing(functions, _SHUFFLE), _doing(functions, _PRODUCT)
    for kernel in _kernels(data, captures):
        counts["warp_specialization"] += _has_roles(kernel, copies, signals)
        counts["persistent_kernel"] += sized and _walks_by_grid(kernel)
        counts["overlapped_loads"] += _copies_behind_wait(kernel, copies, waits)
        counts["held_values"] += not products.search(kernel.body.text) and _holds(kernel, reduces, copies)
        counts["block_reduce"] += _meets_in_shared(kernel, shuffles)
        counts["double_buffering"] += _alternates(kernel) and _is_fed(kernel, copies)
        counts["prefetch"] += _loads_ahead(kernel)
        counts["tile_rasterization"] += _groups_tiles(kernel)
    bodies = [*functions.values(), *(kernel.body.text for kernel in _kernels(data, captures))]
    counts["split_operands"] += "mma" in whole and any(map(_keeps_remainder, bodies))
    counts["online_softmax"] += any(
        _merges_pairs(body) for body in functions.values() if not shuffles.search(body)
    )
    counts["welford"] += any(map(_merges_moments, bodies))
    return +counts


def _functions(data: bytes, captures: Mapping[str, list[Node]]) -> Iterator[tuple[str, str]]:
    """Name and body of functions and lambdas that are no kernels."""
    for node in captures.get("function", [])[:_MOST]:
        body, head = node.child_by_field_name("body"), node.child_by_field_name("declarator")
        if body is None or head is None or b"__global__" in data[node.start_byte : body.start_byte]:
            continue
        name = _NAME.search(_text(data, head))
        if name is not None:
            yield name[0], _text(data, body)
    for node in captures.get("lambda", [])[:_MOST]:
        name, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
        if name is not None and value is not None:
            yield _text(data, name), _text(data, value)


def _text(data: bytes, node: Node) -> str:
    return data[node.start_byte : min(node.end_byte, node.start_byte + _LONGEST)].decode("utf-8", "replace")


def _kernels(data: bytes, captures: Mapping[str, list[Node]]) -> Iterator[_Kernel]:
    for node in captures.get("function", [])[:_MOST]:
        body = node.child_by_field_name("body")
        if body is None or b"__global__" not in data[node.start_byte : body.start_byte]:
            continue
        inside = _Part(body.start_byte, min(body.end_byte, body.start_byte + _LONGEST), _text(data, body))
        loops = [*captures.get("loop", []), *captures.get("while", [])]
        yield _Kernel(
            body=inside,
            loops=tuple(_parts(data, loops, inside)),
            branches=tuple(_branches(data, captures.get("branch", []), inside)),
            made=_made(inside.text),
        )


def _parts(data: bytes, nodes: Iterable[Node], inside: _Part) -> Iterator[_Part]:
    within = [node for node in nodes if inside.start <= node.start_byte and node.end_byte <= inside.end]
    for node in sorted(within, key=lambda item: item.start_byte)[:_MOST]:
        yield _Part(node.start_byte, node.end_byte, _text(data, node))


def _branches(data: bytes, nodes: Iterable[Node], inside: _Part) -> Iterator[_Branch]:
    for node in sorted(nodes, key=lambda item: item.start_byte):
        condition, then = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        if condition is None or then is None or not (inside.start <= node.start_byte and node.end_byte <= inside.end):
            continue
        other = node.child_by_field_name("alternative")
        part = _Part(then.start_byte, then.end_byte, _text(data, then))
        yield _Branch(_text(data, condition), part, "" if other is None else _text(data, other))


def _made(body: str) -> dict[str, str]:
    made: dict[str, str] = {}
    for found in _SET.finditer(body):
        made.setdefault(found[1], found[2])
    return made


def _doing(functions: Mapping[str, str], mark: re.Pattern[str]) -> re.Pattern[str]:
    """Matches ``mark`` itself and calls of functions that do it, themselves or through one other function."""
    names = {name for name, body in functions.items() if mark.search(body)}
    for _ in range(2):
        calls = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None
        names |= {name for name, body in functions.items() if calls is not None and calls.search(body)}
    called = rf"|\b(?:{'|'.join(map(re.escape, sorted(names)))})\s*(?:<[^;<>]{{0,60}}>\s*)?\(" if names else ""
    return re.compile(f"(?:{mark.pattern}){called}")


def _alternates(kernel: _Kernel) -> bool:
    """Whether shared memory is used in two halves by turns."""
    text = kernel.body.text
    if "__shared__" not in text:
        return False
    if any(pattern.search(text) for pattern in _PINGPONG):
        return True
    return any("blockIdx" not in kernel.reach(found[1]) for found in _FLIPPED.finditer(text))


def _is_fed(kernel: _Kernel, copies: re.Pattern[str]) -> bool:
    """Whether shared memory receives what was loaded, not only what was worked out."""
    text = kernel.body.text
    if copies.search(text) or re.search(r"extern\s+__shared__", text):  # the latter is filled through pointers
        return True
    shared = set(_SHARED.findall(text))
    taken = {found[1] for found in _ELEMENT.finditer(text) if _LOAD.match(found[4])}
    taken |= {found[1] for found in _SET.finditer(text) if _LOAD.match(found[2])}
    return any(
        found[1] in shared and (_LOAD.match(found[4]) or taken & set(_NAME.findall(found[4])[:1]))
        for found in _ELEMENT.finditer(text)
    )


def _has_roles(kernel: _Kernel, copies: re.Pattern[str], signals: re.Pattern[str]) -> bool:
    """Whether some threads only fill what the others empty: a loop of theirs waits for room and copies."""
    for branch in kernel.branches:
        if "threadIdx" not in kernel.reach(branch.condition):
            continue
        then = branch.then
        feeding = any(
            then.holds(loop) and copies.search(loop.text) and signals.search(loop.text) for loop in kernel.loops
        )
        alone = not any(loop.holds(then) for loop in kernel.loops) or signals.search(branch.otherwise)
        if feeding and alone and signals.search(_outside(kernel.body, then)):
            return True
    return False


def _outside(body: _Part, part: _Part) -> str:
    return body.text[: max(0, part.start - body.start)] + " " + body.text[part.end - body.start :]


def _walks_by_grid(kernel: _Kernel) -> bool:
    """Whether a loop goes on by the number of blocks: over tiles, not over single elements."""
    steps = {name for name, value in kernel.made.items() if _of_grid(value, kernel)}
    for loop in kernel.loops:
        for found in [*_STEPPED.finditer(loop.text), *_ADDED.finditer(loop.text)]:
            if _is_stride(found[2], steps, kernel) and not _of_thread(found[1], kernel):
                return True
        head = loop.text[: loop.text.find("{") if "{" in loop.text else None]
        bounds = [kernel.made.get(name, "") for name in _NAME.findall(head)]
        divisors = [found[1] for bound in bounds for found in _DIVIDED.finditer(bound)]
        if any(divisor in steps or divisor.startswith("gridDim") for divisor in divisors):
            return True
    return False


def _of_grid(value: str, kernel: _Kernel) -> bool:
    """Whether ``value`` is the number of blocks, or of groups of them."""
    whole = kernel.reach(value)
    return "gridDim" in whole and "blockDim" not in whole and "threadIdx" not in whole and "blockIdx" not in whole


def _is_stride(value: str, steps: set[str], kernel: _Kernel) -> bool:
    names = set(_NAME.findall(value))
    return ("gridDim" in names or bool(names & steps)) and "blockDim" not in names and "blockDim" not in kernel.reach(value)


def _of_thread(name: str, kernel: _Kernel) -> bool:
    """Whether ``name`` differs from thread to thread of a warp."""
    value = kernel.made.get(name, "")
    for _ in range(3):
        value = _PER_WARP.sub("", value)
        if "threadIdx" in value:
            return True
        value = " ".join(kernel.made.get(one, "") for one in _NAME.findall(value))
    return False


def _copies_behind_wait(kernel: _Kernel, copies: re.Pattern[str], waits: re.Pattern[str]) -> bool:
    """Whether a loop waits for a copy and then starts the next one, the first having been started before the loop."""
    for loop in kernel.loops:
        met = waits.search(loop.text)
        if met and copies.search(loop.text, met.end()) and copies.search(kernel.body.text, 0, loop.start - kernel.body.start):
            return True
    return False


def _holds(kernel: _Kernel, reduces: re.Pattern[str], copies: re.Pattern[str]) -> bool:
    """Whether an array filled by loads is read before a reduction over threads and again behind it."""
    text = kernel.body.text
    places = [found.start() for found in reduces.finditer(text)][:_MOST]
    if not places:
        return False
    fills: dict[str, list[int]] = {}
    for name, end in _filled(kernel, copies):
        fills.setdefault(name, []).append(end)
    return any(_kept(name, sorted(ends), places, text) for name, ends in fills.items())


def _kept(name: str, ends: list[int], places: list[int], text: str) -> bool:
    """Whether ``name`` is used on both sides of one of ``places`` without being filled or declared anew between."""
    uses = [found.start() for found in re.finditer(_USE.format(re.escape(name)), text)]
    anew = [found.start() for found in re.finditer(rf"\w\s+{re.escape(name)}\s*\[[^;=]*;", text)]
    for end, after in zip(ends, [*ends[1:], len(text)], strict=True):
        after = min([after, *(place for place in anew if place > end)])
        inside = [use for use in uses if end < use < after]
        if inside and any(inside[0] < place < inside[-1] for place in places):
            return True
    return False


def _filled(kernel: _Kernel, copies: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Arrays of a kernel that loads fill, with other names of the same place, and where a fill ends."""
    text = kernel.body.text
    arrays, shared = set(_ARRAY.findall(text)), set(_SHARED.findall(text))
    loaded = {found[1] for found in _SET.finditer(text) if _is_load(found[2], arrays - shared, set())}
    for found in _ELEMENT.finditer(text):
        name, value = found[1], found[4].strip()
        if name in arrays and _is_load(value, arrays - shared, loaded) and not _names(name, value):
            yield name, found.end()
    for found in _TAKEN.finditer(text):
        if found[1] in arrays:
            yield found[1], found.end()
    for found in [*copies.finditer(text)][:_MOST]:
        reached = set(_NAME.findall(kernel.reach(text[found.start() : found.start() + 300].partition(");")[0])))
        for name in shared & reached:
            yield name, found.end()
            yield from ((other, found.end()) for other, value in kernel.made.items() if value.startswith(f"{name} +"))


def _is_load(value: str, registers: set[str], loaded: set[str]) -> bool:
    """Whether ``value`` comes from memory, as it is or through one function."""
    if _LOAD.match(value):
        return True
    plain = _PLAIN.match(value)
    if plain is None:
        return False
    return plain[1] in loaded or (plain[2] == "[" and plain[1] not in registers)


def _names(name: str, value: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", value) is not None


def _meets_in_shared(kernel: _Kernel, reduces: re.Pattern[str]) -> bool:
    """Whether warps leave values in shared memory that others read by another index and combine."""
    text = kernel.body.text
    shared = set(_SHARED.findall(text))
    for found in _ELEMENT.finditer(text):
        name, index = found[1], found[2]
        if name not in shared or _LOAD.match(found[4]) or not _PER_WARP.search(kernel.reach(index)):
            continue
        for use in re.finditer(rf"[^;{{}}]*\b{re.escape(name)}\s*((?:\[[^\[\];]*\])+)(?!\s*=[^=])[^;{{}}]*;", text[found.end() :]):
            behind = text[found.end() + use.end() : found.end() + use.end() + 300]
            if use[1] != index and (re.search(r"\+=|fmaf?|max|min", use[0]) or reduces.search(behind)):
                return True
    return False


def _loads_ahead(kernel: _Kernel) -> bool:
    """Whether a loop loads into registers what its next turn uses: they are read first and loaded again after that."""
    body = kernel.body
    for loop in kernel.loops:
        for found in re.finditer(r"\b([A-Za-z_]\w*)\s*((?:\[[^\[\]]{1,60}\])*)\s*=(?!=)\s*([^;]{1,300});", loop.text):
            name, value = found[1], found[3]
            if not _LOAD.match(value):
                continue
            before = body.text[: loop.start - body.start]
            sets = re.finditer(rf"\b{re.escape(name)}\s*(?:\[[^\[\]]{{1,60}}\])*\s*=(?!=)\s*", before)
            set_before = any(_LOAD.match(before[one.end() : one.end() + 300]) for one in sets)
            declared = re.search(rf"\b(?:float|int|uint|T|half|double|__\w+)\w*\s+{re.escape(name)}\b", loop.text[: found.start()])
            used = re.search(rf"\b{re.escape(name)}\b(?!\s*(?:\[[^\[\]]*\])*\s*=[^=])", loop.text[: found.start()])
            if set_before and used and not declared:
                return True
    return False


def _groups_tiles(kernel: _Kernel) -> bool:
    """Whether the number of a block is taken apart by groups of rows of tiles, the last of which may be lower."""
    for found in _GROUPED.finditer(kernel.body.text):
        name = re.escape(found[1])
        for use in re.finditer(rf"([\w()]+)\s*[%/]\s*{name}\b", kernel.body.text[found.end() :]):
            if "blockIdx" in kernel.reach(use[1]):
                return True
    return False


def _keeps_remainder(body: str) -> bool:
    """Whether what rounding to a shorter number leaves over is worked out."""
    if _BACK.search(body):
        return True
    made = _made(body)
    back = {name for name, value in made.items() if _BACK_TO_FLOAT.search(value)}
    back |= {found[1] for found in _LISTED.finditer(body) if back & set(_NAME.findall(found[2]))}
    return any(found[1] in back for found in _LESS.finditer(body))


def _merges_pairs(body: str) -> bool:
    """Whether a function joins two (maximum, sum) pairs into one."""
    if len(body) > 1500 or not re.search(r"max|>", body):
        return False
    return any(found[1] != found[2] and re.search(r"\*|fma", body) for found in _MERGED.finditer(body))


def _merges_moments(body: str) -> bool:
    """Whether a mean is moved by a share of a difference whose square is added to the squares."""
    for found in _DELTA.finditer(body):
        delta, mean = re.escape(found[1]), re.escape(found[3])
        behind = body[found.end() : found.end() + 400]
        moved = rf"\b{mean}\s*(?:\+=\s*{delta}\b|=\s*fmaf?\(\s*{delta}\s*,[^;]*\b{mean}\s*\)|=\s*{mean}\s*\+\s*{delta}\b)"
        if re.search(moved, behind) and re.search(rf"\b{delta}\s*\*", behind):
            return True
    return False
