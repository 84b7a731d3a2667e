"""What kernels do over time: who loads and who computes, what is on its way meanwhile, which tiles come next.

Read from statements and from where values come from. Names say nothing here, but for shared arrays that hold results.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from artifacts.features.kernels import (
    LOAD,
    NAME,
    Kernel,
    calls_in,
    doing,
    functions_in,
    kernels_in,
    places,
)
from artifacts.features.values import (
    REDUCE,
    holds_row,
    keeps_remainder,
    meets_in_shared,
    merges_moments,
    merges_pairs,
    taken,
)

if TYPE_CHECKING:
    from tree_sitter import Node

SCRATCH = re.compile(
    r"(?i)\b(?:red|part|sums?|slot|tot|max|min|stat|bar|warp|cnt|s_|smem_sum|sdata|bound|order|norm)\w*\s*\[|WARPS?\b|/\s*32"
)
"""Declarations of shared arrays that hold results and not inputs."""

_COPY = re.compile(r"cp\.async(?!\.(?:wait|commit|mbarrier|bulk\.(?:wait|commit|prefetch)))|memcpy_async")
_ARRIVAL = re.compile(r"mbarrier\S*(?:try|test)_wait")
_WAIT = re.compile(rf"{_ARRIVAL.pattern}|cp\.async\.wait|pipeline_wait_prior|consumer_wait|producer_acquire")
_SIGNAL = re.compile(rf"{_ARRIVAL.pattern}|\bbar\.sync|barrier\.sync|consumer_wait|producer_acquire")
_SHUFFLE = re.compile(r"__shfl_\w+|__reduce_\w+_sync")
_PRODUCT = re.compile(r"\bmma\.sync|\bwgmma\.mma|mma_sync|tcgen05\.mma")
_SIZED = re.compile(r"multiProcessorCount|MultiProcessorCount|cudaOccupancyMaxActive")
_PER_WARP = re.compile(r"\b(?:threadIdx\.x|\w+)\s*(?:>>\s*[5-9]\b|/\s*(?:32|64|128|256|[A-Za-z_]\w*)\b)")
"""What the threads of a warp have in common, sizes by name taken for whole warps."""
_STEPPED = re.compile(r"\b([A-Za-z_]\w*)\s*\+=\s*([^;()]{1,80}(?:\([^;()]{0,80}\))?[^;()]{0,40})")
_ADDED = re.compile(r"\b[A-Za-z_]\w*\s*=(?!=)\s*\(?\s*([A-Za-z_]\w*)\s*\+\s*([^;]{1,80})\s*;")
_DRAWN = re.compile(r"\b(\w+)\s*=\s*(?:\(\w+\)\s*)?atomicAdd\s*\(\s*&?\s*(\w+)[^;()]{0,80}\)\s*;")
_DIVISOR = re.compile(r"/\s*([A-Za-z_]\w*|gridDim\.\w)")
_ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\[[^\[\]]{1,60}\]){0,3}\s*=(?!=)\s*([^;]{1,300});")
_LOAD_WORDS = ("ld", "oad", "reinterpret_cast")
"""One of these is in whatever ``LOAD`` matches."""
_DYNAMIC = re.compile(r"extern\s+__shared__")
_DECLARED = re.compile(r"\b(\w+)\s*(?:\[[^\[\];]{1,80}\]){2,}\s*;")
_STAGED = re.compile(r"^\w+\s*\[\s*(?:2|3|4|\w*(?:STAGE|BUF)\w*)\s*\]\s*\[", re.IGNORECASE)
_FLIPPED = re.compile(r"\b(\w+)\s*\^=?\s*1\b")
_PINGPONG = re.compile(
    r"1\s*-\s*(?:buf|cur|stage|read|write)|ping(?<!\wping)|\(\s*\w+\s*\+\s*1\s*\)\s*%\s*2|&\s*1\s*\]",
)
_MOST_LOADS = 400
_MOST_LOOKED_AT = 1_000_000
"""Characters of nested loops looked at, which would be read as often as they are deep."""
_LOWER = r"\w+\s*,\s*\w+\s*-\s*[^;,]{1,40}|\w+\s*-\s*[^;,]{1,40},\s*\w+"
_LOWER_OF = re.compile(r"=\s*(?:::|std::)?min\s*\(")
_GROUPED = re.compile(rf"\b(\w+)\s*=\s*(?:::|std::)?min\s*\(\s*(?:{_LOWER})\)\s*;")


def conduct(data: bytes, captures: Mapping[str, list[Node]]) -> Counter[str]:
    """Code features of the kernels in ``data``, C-family text in which comments are blanks."""
    kernels = kernels_in(data, captures)
    counts: Counter[str] = Counter()
    if not kernels:
        return counts
    functions = functions_in(data, captures)
    calls = calls_in(functions)
    text = data.decode("latin-1")
    copies, reduces, shuffles = (doing(functions, calls, mark) for mark in (_COPY, REDUCE, _SHUFFLE))
    if _COPY.search(text):
        arrivals, waits, signals = (doing(functions, calls, mark) for mark in (_ARRIVAL, _WAIT, _SIGNAL))
        for kernel in kernels:
            counts["warp_specialization"] += _has_roles(kernel, copies, signals)
            counts["overlapped_loads"] += _waits_in_turn(kernel, copies, arrivals) or _copies_on(kernel, copies, waits)
    multiplies = "mma" in text
    products = doing(functions, calls, _PRODUCT) if multiplies else _PRODUCT
    sized, reduced = _SIZED.search(text) is not None, REDUCE.search(text) is not None
    for kernel in kernels:
        counts["persistent_kernel"] += _draws_tiles(kernel) or (sized and _walks_by_grid(kernel))
        counts["double_buffering"] += _alternates(kernel) and _is_fed(kernel, copies)
        counts["prefetch"] += _loads_ahead(kernel)
        counts["tile_rasterization"] += _groups_tiles(kernel)
        held = reduced and not (multiplies and products.search(kernel.body.text))
        counts["held_values"] += held and holds_row(kernel, reduces, copies)
        counts["block_reduce"] += meets_in_shared(kernel, shuffles)
    bodies = [*functions.values(), *(kernel.body.text for kernel in kernels)]
    counts["split_operands"] += multiplies and any(map(keeps_remainder, bodies))
    counts["welford"] += any(map(merges_moments, bodies))
    alone = [body for body in functions.values() if not shuffles.search(body)]
    counts["online_softmax"] += any(map(merges_pairs, alone))
    return +counts


def _has_roles(kernel: Kernel, copies: re.Pattern[str], signals: re.Pattern[str]) -> bool:
    """Whether some threads only fill what the others empty: a loop of theirs waits for room and copies."""
    for branch in kernel.branches:
        if "threadIdx" not in kernel.reach(branch.condition):
            continue
        then = branch.then
        feeding = any(
            then.holds(loop) and copies.search(loop.text) and signals.search(loop.text) for loop in kernel.loops
        )
        alone = signals.search(branch.otherwise) or not any(loop.holds(then) for loop in kernel.loops)
        if feeding and alone and signals.search(kernel.outside(then)):
            return True
    return False


def _draws_tiles(kernel: Kernel) -> bool:
    """Whether a loop draws its next tile from a counter in global memory and tells the block."""
    draws = [found for loop in kernel.loops if "atomicAdd" in loop.text for found in places(_DRAWN, loop.text)]
    return any(found[1] in kernel.shared and found[2] not in kernel.shared for found in draws)


def _walks_by_grid(kernel: Kernel) -> bool:
    """Whether a loop goes on by the number of blocks, over tiles and not over single elements."""
    steps = {name for name, value in kernel.made.items() if _is_of_grid(value, kernel)}
    for loop in kernel.loops:
        for found in [*places(_STEPPED, loop.text), *places(_ADDED, loop.text)]:
            if _is_stride(found[2], steps, kernel) and not _differs_in_warp(found[1], kernel):
                return True
        bounds = [kernel.made.get(name, "") for name in NAME.findall(loop.text.partition("{")[0])]
        divisors = [found[1] for bound in bounds for found in _DIVISOR.finditer(bound)]
        if any(divisor in steps or divisor.startswith("gridDim") for divisor in divisors):
            return True
    return False


def _is_of_grid(value: str, kernel: Kernel) -> bool:
    """Whether ``value`` is the number of blocks, or of groups of them."""
    whole = kernel.reach(value)
    return "gridDim" in whole and not any(word in whole for word in ("blockDim", "threadIdx", "blockIdx"))


def _is_stride(value: str, steps: set[str], kernel: Kernel) -> bool:
    names = set(NAME.findall(value))
    return bool(names & {"gridDim", *steps}) and "blockDim" not in kernel.reach(value)


def _differs_in_warp(name: str, kernel: Kernel) -> bool:
    value = kernel.made.get(name, "")
    for _ in range(3):
        value = _PER_WARP.sub("", value)
        if "threadIdx" in value:
            return True
        value = " ".join(kernel.made.get(one, "") for one in NAME.findall(value))
    return False


def _copies_on(kernel: Kernel, copies: re.Pattern[str], waits: re.Pattern[str]) -> bool:
    """Whether a loop waits for a copy and then starts the next one, the first having been started before the loop."""
    for loop in kernel.loops:
        met = waits.search(loop.text)
        if met and copies.search(loop.text, met.end()) and copies.search(kernel.before(loop)):
            return True
    return False


def _waits_in_turn(kernel: Kernel, copies: re.Pattern[str], arrivals: re.Pattern[str]) -> bool:
    """Whether a counted loop waits for one copy after another, so that later ones are still on their way."""
    if not copies.search(kernel.body.text):
        return False
    return any(loop.text.startswith("for") and arrivals.search(loop.text) for loop in kernel.loops)


def _alternates(kernel: Kernel) -> bool:
    """Whether shared memory is used in parts by turns."""
    text = kernel.body.text
    if not kernel.shared:
        return False
    declared = [found[0] for found in _DECLARED.finditer(text) if found[1] in kernel.shared] if "][" in text else []
    if any(_STAGED.search(array) and not SCRATCH.search(array) for array in declared) or _PINGPONG.search(text):
        return True
    flipped = places(_FLIPPED, text) if "^" in text else []
    return any("blockIdx" not in kernel.reach(found[1]) for found in flipped)


def _is_fed(kernel: Kernel, copies: re.Pattern[str]) -> bool:
    """Whether shared memory receives what was loaded, not only what was worked out."""
    text = kernel.body.text
    if copies.search(text) or _DYNAMIC.search(text):  # the latter is filled through pointers
        return True
    loaded = {found[1] for found in kernel.elements if kernel.loads(found[3])}
    loaded |= {found[1] for found in kernel.sets if kernel.loads(found[2])}
    stores = [found[3] for found in kernel.elements if found[1] in kernel.shared]
    return any(kernel.loads(value) or loaded.intersection(NAME.findall(value)[:1]) for value in stores)


def _loads_ahead(kernel: Kernel) -> bool:
    """Whether a loop loads into registers what its next turn uses: they are read first and loaded again after that."""
    if not kernel.loops:
        return False
    loads = list(itertools.islice(_register_loads(kernel), _MOST_LOADS))
    left = _MOST_LOOKED_AT
    for loop in kernel.loops:
        start, end = loop.start - kernel.body.start, loop.end - kernel.body.start
        held = {name for name, at in loads if at < start}
        last = {name: at for name, at in loads if name in held and start <= at < end}
        left -= sum(at - start for at in last.values())
        if left > 0 and any(_is_read_first(name, kernel.body.text[start:at]) for name, at in last.items()):
            return True
    return False


def _is_read_first(name: str, earlier: str) -> bool:
    """Whether ``earlier``, the beginning of a loop, reads ``name`` and does not declare it."""
    word = re.escape(name)
    if re.search(rf"\b(?!return\b)[A-Za-z_]\w*\s+{word}\b", earlier):
        return False
    return re.search(rf"\b{word}\b(?!\s*(?:\[[^\[\]]{{0,80}}\])*\s*=[^=])", earlier) is not None


def _register_loads(kernel: Kernel) -> Iterator[tuple[str, int]]:
    """Registers that are loaded from global memory, and where."""
    text = kernel.body.text
    for found in _ASSIGNED.finditer(text) if any(word in text for word in _LOAD_WORDS) else ():
        if LOAD.match(found[2]):
            yield found[1], found.start()
    for found in taken(text):
        given = text[found.end() : found.end() + 300].partition(";")[0]
        if found[1] in kernel.registers and kernel.shared.isdisjoint(NAME.findall(kernel.reach(given))):
            yield found[1], found.start()


def _groups_tiles(kernel: Kernel) -> bool:
    """Whether the number of a block is taken apart by groups of rows of tiles, the last of which may be lower."""
    text = kernel.body.text
    for found in places(_GROUPED, text) if _LOWER_OF.search(text) else ():
        divided = re.compile(rf"([\w()]{{1,80}})\s*[%/]\s*{re.escape(found[1])}\b")
        if any("blockIdx" in kernel.reach(use[1]) for use in places(divided, text[found.end() :])):
            return True
    return False
