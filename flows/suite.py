"""Steps of the flow over a suite: what to run where, one task of it, and what became of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.futures import PrefectFutureList

from artifacts.candidate import source_hash
from artifacts.errors import HtamError
from flows.command import htam
from flows.devices import Devices
from flows.engine import RETRY
from flows.pages import followed
from flows.stages import STAGE
from optimizer.tasks import load_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEntry:
    """One task and the directory of its run."""

    task_id: str
    path: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """What became of one entry; ``problem`` is None when its command ended well."""

    entry: SuiteEntry
    finished: Mapping[str, Any] | None
    problem: Exception | None

    def checked(self) -> str:
        """The run directory.

        Raises:
            HtamError: or whatever else kept the task from being run.
        """
        if self.problem is not None:
            raise self.problem
        return self.entry.run


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


@task(name="optimize-task", task_run_name="{entry.task_id}", **STAGE, **RETRY)
def optimize_task(
    entry: SuiteEntry, options: Mapping[str, str], devices: Devices, timeout_s: float | None
) -> dict[str, Any]:
    """Run or go on with one task in a process of its own; returns where its run stands."""
    with devices.lent() as environment:
        out = htam(
            optimize_words(entry, options), Path(f"{entry.run}.log"), environment=environment, timeout_s=timeout_s
        )
    standing: dict[str, Any] = json.loads(out)
    return standing


def optimize_words(entry: SuiteEntry, options: Mapping[str, str]) -> list[str]:
    """What is typed after ``htam`` for one task."""
    words = ["optimize", entry.path, "--run", entry.run, "--json"]
    return words + [word for name, value in sorted(options.items()) for word in (f"--{name}", str(value))]


def settled(entries: Sequence[SuiteEntry], futures: PrefectFutureList[dict[str, Any]]) -> list[SuiteResult]:
    """Wait for all; one failing task stops no other."""
    results = []
    for entry, value in zip(entries, followed(futures, "tasks", raising=False), strict=True):
        problem = value if isinstance(value, Exception) else None
        results.append(SuiteResult(entry=entry, finished=None if problem else _finished(value), problem=problem))
    return results


def _finished(standing: Any) -> Mapping[str, Any]:
    if not isinstance(standing, Mapping):
        raise HtamError(f"htam optimize answered {standing!r}", "report this as a bug")
    return next(iter(standing["finished"]), {})
