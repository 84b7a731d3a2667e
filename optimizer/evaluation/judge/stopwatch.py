"""Where an evaluation's seconds go."""

from __future__ import annotations

import time
from collections import Counter


class Stopwatch:
    """Adds up laps by name; ``seconds`` has them."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._seconds: Counter[str] = Counter()

    @property
    def seconds(self) -> dict[str, float]:
        """Name → seconds so far."""
        return {name: round(value, 3) for name, value in self._seconds.items()}

    def lap(self, name: str) -> None:
        """Book the time since the last lap under ``name``."""
        now = time.monotonic()
        self._seconds[name] += now - self._last  # type: ignore[assignment]
        self._last = now
