"""The judge's clock: cold-cache samples from the cell, watched from outside."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from optimizer.evaluation.clock import Call
from optimizer.evaluation.judge.cell_client import Cell


class CellCalls:
    """Stands for one cell in ``time_callable`` and ``compare``; it is never called itself."""

    def __init__(self, cell: Cell, variants: int, seed: int) -> None:
        self.cell = cell
        self.variants = variants
        self._random = random.Random(seed)

    def draw(self) -> int:
        """Which input variant the next call gets: unknown to the candidate before."""
        return self._random.randrange(self.variants)

    def __call__(self) -> Call:
        """Not for calling; the remote clock asks the cell."""
        raise TypeError("a cell's calls are timed by RemoteClock")


class RemoteClock:
    """A :class:`optimizer.evaluation.clock.Clock` whose calls happen in cells; runs of one cell are sent together."""

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """Time each call where it lives."""
        samples: list[float] = []
        start = 0
        while start < len(prepares):
            calls = prepares[start]
            assert isinstance(calls, CellCalls)
            end = start
            while end < len(prepares) and prepares[end] is calls:
                end += 1
            samples += calls.cell.time([calls.draw() for _ in range(end - start)])
            start = end
        return samples
