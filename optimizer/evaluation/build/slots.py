"""How many compilers run at a time, and who is next."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Iterator

URGENT = 0
"""Ticket of what many builds wait for."""


class CompilerSlots:
    """So many compilers at a time. Of those that wait, the oldest build's go first.

    With all builds served alike, all would be done at the same late moment, and devices idle until then.

    Args:
        count: compilers that run at a time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._tickets = itertools.count(URGENT + 1)
        self._arrivals = itertools.count()
        self._waiting: list[tuple[bool, int, int]] = []
        self._changed = threading.Condition()

    def ticket(self) -> int:
        """A build's place in the queue."""
        return next(self._tickets)

    @contextlib.contextmanager
    def slot(self, ticket: int, *, gets_cheaper: bool = False) -> Iterator[None]:
        """Wait for a slot and hold it; work that ``gets_cheaper`` with time lets all other work go first."""
        with self._changed:
            place = (gets_cheaper, ticket, next(self._arrivals))
            heapq.heappush(self._waiting, place)
            self._changed.wait_for(lambda: self._free > 0 and self._waiting[0] == place)
            heapq.heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
