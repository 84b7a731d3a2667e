"""What the benchmarks at published sizes share: tasks of a checkout, results line by line, a limit in seconds."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One file of KernelBench."""

    level: int
    problem: int
    name: str
    source: str


def tasks_of(checkout: Path, levels: Sequence[int]) -> list[Task]:
    """The tasks of some levels, in the order of their numbers."""
    found = []
    for level in levels:
        for path in (checkout / "KernelBench" / f"level{level}").glob("*_*.py"):
            problem = int(path.stem.split("_")[0])
            found.append(Task(level, problem, f"{level}/{path.stem}", path.read_text(encoding="utf-8")))
    return sorted(found, key=lambda task: (task.level, task.problem))


class Results:
    """Rows that are written and shown as they come.

    Args:
        path: of the JSON lines; an existing file is added to.
        show: one line for people; rows get ``at_s``, seconds since this was made.
    """

    def __init__(self, path: Path, show: Callable[[dict[str, Any]], str]) -> None:
        self._path = path
        self._show = show
        self._start = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: dict[str, Any]) -> None:
        """Write a row, show it, remember it."""
        row = {"at_s": round(time.monotonic() - self._start, 2), **row}
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(self._show(row).replace("\n", " "), flush=True)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` in the main thread when the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
