"""What an evaluation says beside its verdict."""

from __future__ import annotations

import time
from collections import Counter

from artifacts.measurement import Doubt, GuardFinding


class Record:
    """Filled by all stages, also by those before one that fails.

    Attributes:
        checks: what was checked and held so far.
        notes: what a reader must know.
        findings: what the run-time guard saw and let pass.
        doubts: why being correct says little here.
    """

    def __init__(self) -> None:
        self.checks: list[str] = []
        self.notes: list[str] = []
        self.findings: list[GuardFinding] = []
        self.doubts: list[Doubt] = []
        self._last = time.monotonic()
        self._seconds: Counter[str] = Counter()

    @property
    def seconds(self) -> dict[str, float]:
        """Stage → seconds so far."""
        return {name: round(value, 3) for name, value in self._seconds.items()}

    def note(self, text: str) -> None:
        """Say something once."""
        if text and text not in self.notes:
            self.notes.append(text)

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under ``stage``."""
        now = time.monotonic()
        self._seconds[stage] += now - self._last  # type: ignore[assignment]
        self._last = now
