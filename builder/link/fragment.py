"""The piece of code that a step added: what a strategy's template is made of."""

from __future__ import annotations

import difflib
import textwrap
from itertools import accumulate

from builder.link.units import outlines, tells

MOST_CHARACTERS = 1600
MOST_LINES = 45
LARGEST = 200_000
"""Sources above this many characters are not compared: difflib is quadratic at worst."""


def added_fragment(parent: str, child: str) -> str:
    """The largest whole statements, loops or functions that ``child`` has and ``parent`` lacks; empty without any.

    Neighbouring changes are looked at together when no more than two kept lines lie between them. What is longer than
    fits a prompt is shown in part, but the part is whole: a loop of a function, a few statements of a loop.
    """
    before, after = parent.splitlines(), child.splitlines()
    if len(parent) + len(child) > LARGEST or not after:
        return ""
    matcher = difflib.SequenceMatcher(None, [line.strip() for line in before], [line.strip() for line in after], False)
    runs = [(start, end) for tag, _, _, start, end in matcher.get_opcodes() if tag in ("insert", "replace")]
    if not runs:
        return ""
    inside = outlines(child)
    blocks = {block for run in _joined(runs) for outline in inside for block in outline.blocks(*run, MOST_LINES)}
    # Sums up to each line, so that a block costs two look-ups however long it is.
    telling = [0, *accumulate(tells(line) for line in after)]
    characters = [0, *accumulate(len(line) + 1 for line in after)]
    fitting = sorted(block for block in blocks if characters[block[1]] - characters[block[0]] <= MOST_CHARACTERS)
    start, end = max(fitting, key=lambda block: telling[block[1]] - telling[block[0]], default=(0, 0))
    if telling[start] == telling[end]:
        return ""
    return textwrap.dedent("\n".join(line.rstrip() for line in after[start:end])).strip("\n")


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined = [runs[0]]
    for start, end in runs[1:]:
        if start - joined[-1][1] <= 2:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
