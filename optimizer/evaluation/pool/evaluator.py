"""Evaluate by handing jobs to the workers of a pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.pool.folder import PoolFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How to wait.

    Attributes:
        poll_s: seconds between looks for results.
        patience_s: seconds without any worker for a waiting job after which we give up; its jobs stay in the pool
            until the evaluator is closed.
    """

    poll_s: float = 0.25
    patience_s: float = 600.0


class PoolEvaluator:
    """A :class:`optimizer.evaluation.protocol.Evaluator` over the workers of a pool.

    Results are deleted from the pool when the evaluator is closed: until then whoever asked for them may be killed,
    ask again and get what was measured.
    """

    def __init__(self, path: Path, settings: PoolSettings | None = None) -> None:
        self._pool = PoolFolder(path)
        self._settings = settings or PoolSettings()
        self._lock = threading.Lock()
        self._delivered: set[str] = set()
        self._waiting: set[str] = set()
        self._repaired = -float("inf")
        self._able: set[str] = set()
        self._closed = threading.Event()

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        """Evaluate all jobs and yield results as they arrive.

        Raises:
            UnavailableError: no worker of a job's backend for too long, or the evaluator is closed.
        """
        if self._closed.is_set():
            raise UnavailableError("the evaluator is closed")
        sent: dict[str, list[EvaluationJob]] = {}
        for job in jobs:
            sent.setdefault(self._pool.submit(job), []).append(job)
        with self._lock:
            self._waiting |= set(sent)
        lonely = time.monotonic()
        while sent:
            yield from self._arrived(sent)
            self._look_after(sent)
            if {jobs[0].backend for jobs in sent.values()} <= self._able:
                lonely = time.monotonic()
            elif time.monotonic() - lonely > self._settings.patience_s:
                raise UnavailableError(
                    f"no worker serves {self._pool.path}",
                    f"start one: python -P -m optimizer.evaluation.worker --pool {self._pool.path}",
                )
            if sent and self._closed.wait(self._settings.poll_s):
                raise UnavailableError("the evaluator was closed")

    def close(self) -> None:
        """Withdraw what no worker has begun and forget what was delivered."""
        self._closed.set()
        with self._lock:
            for key in self._waiting:
                self._pool.withdraw(key)
            for key in self._delivered:
                self._pool.forget(key)
            self._waiting, self._delivered = set(), set()

    def _arrived(self, sent: dict[str, list[EvaluationJob]]) -> Iterator[tuple[str, Measurement]]:
        for key in list(sent):
            found = self._pool.result(key)
            if found is None:
                continue
            with self._lock:
                self._waiting.discard(key)
                self._delivered.add(key)
            if found.outcome is Outcome.INFRA_ERROR:  # the search asks again, and must not get the same answer
                self._pool.forget(key)
            for job in sent.pop(key):
                yield job.job_id, found

    def _look_after(self, sent: Mapping[str, list[EvaluationJob]]) -> None:
        """Now and then put back what lost workers had, and see which backends the living ones serve."""
        with self._lock:
            if time.monotonic() - self._repaired < self._pool.lease_s / 8:
                return
            self._repaired = time.monotonic()
        now = self._pool.now()
        self._pool.repair(now)
        there = self._pool.known(set(sent))
        for key in set(sent) - there:
            if not self._pool.has_result(key):  # somebody emptied the folder
                self._pool.submit(sent[key][0])
        self._able = {backend for card in self._pool.living(now) for backend in card.devices}


def device_name(path: Path, backend: str, *, patience_s: float = 60.0) -> str:
    """Name of what the workers of a pool measure ``backend`` on; waits for the first of them.

    Raises:
        UnavailableError: there is none.
    """
    pool, end = PoolFolder(path), time.monotonic() + patience_s
    while True:
        for card in pool.living(pool.now()):
            with suppress(KeyError):
                return card.devices[backend]
        if time.monotonic() > end:
            raise UnavailableError(
                f"no worker serves {path} with backend {backend}",
                f"start one (python -P -m optimizer.evaluation.worker --pool {path}), or give --device",
            )
        time.sleep(0.5)
