"""How much of the machine others use, since a busy machine makes honest clocks contradict each other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_BUSY = 0.25
"""Share of all cores' time that others must have used before they explain anything."""
_IDLE_FIELDS = (3, 4)
"""Idle and waiting for disks, in a line of ``/proc/stat`` after its name (see proc_stat(5))."""


class HostLoad:
    """CPU time of others since this was made.

    Args:
        own: CPU seconds so far of the processes that belong to the evaluation.
        stat: the kernel's table of CPU time.
    """

    def __init__(self, own: Callable[[], float], stat: Path = Path("/proc/stat")) -> None:
        self._own = own
        self._stat = stat
        self._start = time.monotonic(), self._busy_s(), own()

    def others(self) -> float:
        """Share of all cores' time that went to others; 0 where the kernel does not say."""
        then, busy, own = self._start
        capacity = (time.monotonic() - then) * (os.cpu_count() or 1)
        used = (self._busy_s() - busy) - (self._own() - own)
        return min(max(used / capacity, 0.0), 1.0) if capacity > 0 else 0.0

    def is_busy(self) -> bool:
        """Whether others use enough to explain times that are off by some factor."""
        return self.others() > _BUSY

    def _busy_s(self) -> float:
        try:
            fields = [int(field) for field in self._stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        return (sum(fields) - sum(fields[index] for index in _IDLE_FIELDS)) / os.sysconf("SC_CLK_TCK")
