"""The piece of code that a step added: what a strategy's template is made of."""

from __future__ import annotations

import difflib
import functools
import textwrap
from collections import Counter
from itertools import accumulate

from builder.link.units import outlines, tells

MOST_CHARACTERS = 1600
MOST_LINES = 45
LARGEST = 200_000
"""Sources above this many characters are not compared: difflib is quadratic at worst."""
MOST_PAIRS = 1_000_000
"""Nor those with more pairs of equal lines than this, by which its time goes."""


@functools.lru_cache(maxsize=1024)
def added_fragment(parent: str, child: str) -> str:
    """The largest whole statements, loops or functions that ``child`` has and ``parent`` lacks; empty without any.

    Neighbouring changes are looked at together when no more than two kept lines lie between them. What is longer than
    fits a prompt is shown in part, but the part is whole: a loop of a function, a few statements of a loop.
    """
    before, after = parent.splitlines(), child.splitlines()
    if len(parent) + len(child) > LARGEST or not after:
        return ""
    old, new = [line.strip() for line in before], [line.strip() for line in after]
    if _pairs(old, new) > MOST_PAIRS:
        return ""
    matcher = difflib.SequenceMatcher(None, old, new, False)
    runs = [(start, end) for tag, _, _, start, end in matcher.get_opcodes() if tag in ("insert", "replace")]
    if not runs:
        return ""
    start, end = _most_telling(child, after, _joined(runs))
    return textwrap.dedent("\n".join(line.rstrip() for line in after[start:end])).strip("\n")


def _pairs(old: list[str], new: list[str]) -> int:
    """How many pairs of lines are equal."""
    counts = Counter(new)
    return sum(counts[line] for line in old)


def _most_telling(child: str, lines: list[str], runs: list[tuple[int, int]]) -> tuple[int, int]:
    """The block within ``runs`` with the most lines that do something, the first of equals; empty when none does."""
    # Sums up to each line, so that a block costs two look-ups however long it is.
    telling = [0, *accumulate(tells(line) for line in lines)]
    characters = [0, *accumulate(len(line) + 1 for line in lines)]
    most, best = 0, (0, 0)
    for outline in outlines(child):
        for run in runs:
            for start, end in outline.blocks(*run, MOST_LINES):
                count = telling[end] - telling[start]
                better = count > most or (count == most > 0 and (start, end) < best)
                if better and characters[end] - characters[start] <= MOST_CHARACTERS:
                    most, best = count, (start, end)
    return best


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [runs[0]]
    for start, end in runs[1:]:
        if start - joined[-1][1] <= 2:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
