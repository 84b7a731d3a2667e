"""What kernels keep and combine: rows held on chip, partial results that meet, pairs merged in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

from artifacts.features.kernels import MOST, NAME, SET, Kernel, first_values, places

REDUCE = re.compile(
    r"__shfl_(?:xor|down)\w*\([^;]{0,80},\s*(?:[A-Za-z_]\w*|16|8|4)\s*\)|__reduce_\w+_sync"
    r"|WarpReduce(?<!\wWarpReduce)\b|BlockReduce(?<!\wBlockReduce)\b"
)
"""Lanes exchange over a distance that changes or is long; over a short one they hand on what lies at an edge."""
_TAKEN = re.compile(r"\b\w*[lL]oad\w*\s*(?:<[^<>;]{0,40}>\s*)?\(\s*([A-Za-z_]\w*)\b")
"""A call that loads into its first argument."""
_WARP = re.compile(r">>\s*5\b|/\s*(?:32|warpSize|WARP_?SIZE)\b")
_COMBINED = re.compile(r"\+=|fmaf?\b|max|min")
_BACK = r"__half2float|__bfloat162float|__half22float2|__low2float|__high2float"
_TO_FLOAT = re.compile(rf"{_BACK}|tf32")
_REMAINDER = re.compile(
    rf"-\s*(?:{_BACK}|__uint_as_float)\s*\("
    r"|\b\w*(?:tf32|half|bf16|bfloat16)\w*\s*\(\s*[\w.]+(?:\[\w+\])?\s*-\s*[\w.]+(?:\[\w+\])?\s*[,)]"
)
_LISTED = re.compile(r"\b(\w+)\s*\[\w*\]\s*=\s*\{([^{};]{1,300})\}")
_LESS = re.compile(r"\b[\w.]+(?:\[\w+\])?\s*-\s*([A-Za-z_]\w*)\b")
_EXPONENT = re.compile(r"exp\w*\s*\(\s*-?\s*(?:fabsf?\s*\(\s*)?([\w.]+)\s*-\s*([\w.]+)\s*\)")
_SUBTRACTED = re.compile(r"-\s*\w+\s*;")
_DELTA = re.compile(r"\b(\w+)\s*=\s*(\w+)\s*-\s*(\w+)\s*;\Z")
_LONGEST_DELTA = 200


def taken(text: str) -> list[re.Match[str]]:
    """The first calls that load into their first argument."""
    return places(_TAKEN, text) if "oad" in text else []


def holds_row(kernel: Kernel, reduces: re.Pattern[str], copies: re.Pattern[str]) -> bool:
    """Whether an array filled by loads is read before a reduction over threads and again behind it."""
    text = kernel.body.text
    met = [found.start() for found in places(reduces, text)]
    fills: dict[str, list[int]] = {}
    for name, end in _filled(kernel, copies) if met else ():
        fills.setdefault(name, []).append(end)
    return any(_kept(name, sorted(ends), met, text) for name, ends in fills.items())


def _kept(name: str, ends: list[int], met: list[int], text: str) -> bool:
    """Whether ``name`` is read on both sides of one of ``met`` without being filled or declared anew between."""
    uses = [found.start() for found in re.finditer(rf"\b{re.escape(name)}\s*\[[^;=]{{0,80}}\](?!\s*=[^=])", text)]
    anew = [found.start() for found in re.finditer(rf"\w\s+{re.escape(name)}\s*\[[^;=]{{0,80}};", text)]
    for end, following in zip(ends, [*ends[1:], len(text)], strict=True):
        after = min([following, *(place for place in anew if place > end)])
        inside = [use for use in uses if end < use < after]
        if inside and any(inside[0] < place < inside[-1] for place in met):
            return True
    return False


def _filled(kernel: Kernel, copies: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """Arrays that loads fill, under every name that a kernel gives them, and where a fill ends."""
    text = kernel.body.text
    loaded = frozenset(found[1] for found in kernel.sets if kernel.loads(found[2]))
    for found in kernel.elements:
        name, value = found[1], found[3].strip()
        array = name in kernel.registers or name in kernel.shared
        if array and kernel.loads(value, loaded) and name not in NAME.findall(value):
            yield name, found.end()
    for found in _TAKEN.finditer(text) if "oad" in text else ():
        if found[1] in kernel.registers:
            yield found[1], found.end()
    for found in places(copies, text):
        arguments = text[found.start() : found.start() + 300].partition(");")[0]
        for name in kernel.shared.intersection(NAME.findall(kernel.reach(arguments))):
            yield name, found.end()
            yield from ((other, found.end()) for other, value in kernel.made.items() if value.startswith(f"{name} +"))


def meets_in_shared(kernel: Kernel, shuffles: re.Pattern[str]) -> bool:
    """Whether warps leave results in shared memory that others read by another index and combine."""
    text = kernel.body.text
    for found in kernel.elements[:MOST] if kernel.shared else ():
        name, index = found[1], found[2]
        if name not in kernel.shared or kernel.loads(found[3]) or not _WARP.search(kernel.reach(index)):
            continue
        behind = text[found.end() :]
        for use in places(re.compile(rf"\b{re.escape(name)}\s*((?:\[[^\[\];]{{0,120}}\])+)(?!\s*=[^=])"), behind):
            begin = max(behind.rfind(mark, max(0, use.start() - 300), use.start()) for mark in ";{}")
            statement, _, rest = behind[begin + 1 : use.end() + 600].partition(";")
            if use[1] != index and (_COMBINED.search(statement) or shuffles.search(rest[:300])):
                return True
    return False


def keeps_remainder(body: str) -> bool:
    """Whether what rounding to a shorter number leaves over is worked out."""
    if _REMAINDER.search(body):
        return True
    back = {name for name, value in first_values(SET.finditer(body)).items() if _TO_FLOAT.search(value)}
    back |= {found[1] for found in _LISTED.finditer(body) if back.intersection(NAME.findall(found[2]))}
    return any(found[1] in back for found in _LESS.finditer(body))


def merges_pairs(body: str) -> bool:
    """Whether a function joins two (maximum, sum) pairs into one: a sum is rescaled by the maxima's difference."""
    if len(body) > 1500 or not re.search(r"max|>", body) or not re.search(r"\*|fma", body):
        return False
    return any(found[1] != found[2] for found in _EXPONENT.finditer(body))


def merges_moments(body: str) -> bool:
    """Whether a mean moves by a share of a difference that also enters the sum of squares (Welford, Chan)."""
    for end in places(_SUBTRACTED, body):
        found = _DELTA.search(body, max(0, end.start() - _LONGEST_DELTA), end.end())
        if found is None:
            continue
        delta, mean = re.escape(found[1]), re.escape(found[3])
        behind = body[found.end() : found.end() + 400]
        moved = (
            rf"\b{mean}\s*(?:\+=\s*{delta}\b|=\s*{mean}\s*\+\s*{delta}\b"
            rf"|=\s*fmaf?\(\s*{delta}\s*,[^;]{{0,80}}\b{mean}\s*\))"
        )
        if re.search(moved, behind) and re.search(rf"\b{delta}\s*\*", behind):
            return True
    return False
