"""Flow ``optimize-suite``: one run directory a task, a process for each, one task a device at a time."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow, task, unmapped
from prefect.artifacts import create_table_artifact

from artifacts.candidate import source_hash
from artifacts.measurement import FASTEST
from flows.engine import MAPPED, followed
from flows.pages import write_report
from flows.supervised import htam, option_words
from optimizer.tasks import load_tasks


@flow(name="optimize-suite", flow_run_name="{runs}")
def optimize_suite(
    tasks: list[str],
    runs: str,
    options: dict[str, str] | None = None,
    devices: list[int] | None = None,
    timeout_s: float | None = None,
) -> list[str]:
    """Optimize every task below ``tasks`` in a run directory of its own below ``runs`` and return those directories.

    Args:
        options: of ``htam optimize``, without dashes, e.g. ``{"memory": "team@prod", "llm": "openai:gpt-5"}``.
        devices: GPU numbers, each lent to one task at a time; empty where evaluation takes place elsewhere.
        timeout_s: of one task.

    Raises:
        HtamError: a task could not be run; all others were, and the table names every one with its result.
    """
    entries = suite_entries(tasks, runs)
    lent = Devices(devices or ())
    futures = optimize_task.map(entries, unmapped(options or {}), unmapped(lent), unmapped(timeout_s))
    results = list(zip(entries, followed(futures, "tasks", raising=False), strict=True))
    rows = [_row(entry, result) for entry, result in results]
    create_table_artifact(key="optimize-suite", table=rows, description="Tasks of the suite with their best candidates")
    made = [entry.run for entry, result in results if not isinstance(result, Exception)]
    write_report.map([[run] for run in made], [f"{run}.html" for run in made]).wait()
    for _, result in results:
        if isinstance(result, Exception):
            raise result
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEntry:
    """One task and the directory of its run."""

    task_id: str
    path: str
    run: str


def suite_entries(tasks: Sequence[str], runs: str) -> list[SuiteEntry]:
    """One entry a task below the paths ``tasks``.

    Raises:
        BadTaskError: a path that holds no task.
    """
    found = load_tasks([Path(path) for path in tasks])
    return [
        SuiteEntry(task_id=item.ref.task_id, path=item.path, run=str(Path(runs) / _folder(item.ref.task_id)))
        for item in found
    ]


def _folder(task_id: str) -> str:
    """Name that tells tasks apart on every file system."""
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in task_id)
    return f"{plain[:80]}-{source_hash(task_id)[:6]}"


@task(name="optimize-task", task_run_name="{entry.task_id}", **MAPPED)
def optimize_task(
    entry: SuiteEntry, options: Mapping[str, str], devices: Devices, timeout_s: float | None
) -> dict[str, Any]:
    """Run or resume one task in a process of its own; returns where its run stands."""
    with devices.lent() as environment:
        words = ["optimize", entry.path, "--run", entry.run, "--json", *option_words(options)]
        out = htam(words, Path(f"{entry.run}.log"), environment=environment, timeout_s=timeout_s)
    standing: dict[str, Any] = json.loads(out)
    return standing


def _row(entry: SuiteEntry, result: Mapping[str, Any] | Exception) -> dict[str, Any]:
    """What became of one task: the answer of its command, or why there is none."""
    problem = str(result) if isinstance(result, Exception) else ""
    finished: Mapping[str, Any] = {} if isinstance(result, Exception) else next(iter(result["finished"]), {})
    speedups = finished.get("speedups") or {}
    return {
        "task": entry.task_id,
        "run": entry.run,
        "steps": finished.get("steps", ""),
        "vs fastest baseline": f"{speedups[FASTEST]:.2f}" if FASTEST in speedups else "",
        "doubt": ", ".join(sorted({doubt["kind"] for doubt in finished.get("doubts", ())})),
        "result": problem or finished.get("reason", "not finished"),
    }


class Devices:
    """Lends GPU numbers; with none to lend (the CPU backend) nobody waits."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._limited = bool(numbers)
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in numbers:
            self._free.put(number)

    @contextmanager
    def lent(self) -> Iterator[dict[str, str]]:
        """Wait for a device and yield the environment that shows a process this one only."""
        if not self._limited:
            yield {}
            return
        number = self._free.get()
        try:
            yield {"CUDA_VISIBLE_DEVICES": str(number)}
        finally:
            self._free.put(number)
