"""The queue itself: files that move between folders by atomic renames, so that no lock can be left behind.

::

    DIR/pool.json              settings that all sides share
    DIR/jobs/ENTRY             jobs that wait
    DIR/leases/ENTRY           the same files while a worker has them
    DIR/results/KEY.json       measurements, the first one of a job wins
    DIR/workers/WORKER.json    who works; its modification time is its heartbeat

A lease lasts as long as its worker's heartbeat. Times are those of the file system, asked for by making a file without
a name, so clocks of hosts need not agree and whoever is killed leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, UnavailableError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.pool.entry import Entry, job_key

SCHEMA = 1
LEASE_S = 120.0
"""Longer than a network file system may show an old modification time."""
ATTEMPTS = 3
KEEP_S = 7 * 86400.0
"""Results that nobody fetched are kept this long."""
PART_S = 3600.0
"""Whoever began a file this long ago and has not finished it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a worker says of itself.

    Attributes:
        devices: backend → product name of what it measures on.
    """

    worker: str
    host: str
    pid: int
    devices: dict[str, str]


class PoolFolder:
    """A pool in ``path``; made when it is not there.

    Args:
        lease_s: seconds without a heartbeat after which a worker counts as lost; fixed when the pool is made.

    Raises:
        UnavailableError: the folder cannot be used, or belongs to another version.
    """

    def __init__(self, path: Path, *, lease_s: float = LEASE_S) -> None:
        self.path = path
        self._jobs, self._leases, self._results, self._workers = (
            path / name for name in ("jobs", "leases", "results", "workers")
        )
        try:
            for folder in (self._jobs, self._leases, self._results, self._workers):
                folder.mkdir(parents=True, exist_ok=True)
            _write_new(path / "pool.json", {"schema_version": SCHEMA, "lease_s": lease_s})
            settings = json.loads((path / "pool.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UnavailableError(f"{path} cannot be used as a pool: {problem}", "check the path") from problem
        if settings.get("schema_version") != SCHEMA:
            raise UnavailableError(f"{path} is a pool of another version", "use the same version on all hosts")
        self.lease_s = float(settings["lease_s"])

    def submit(self, job: EvaluationJob) -> str:
        """Put a job in the queue unless it is there, claimed or done; returns its key."""
        key = job_key(job)
        if not self.known({key}) and not self.has_result(key):
            entry = Entry(backend=job.backend, key=key)
            _write(self._jobs / entry.name, encode(job))
        return key

    def known(self, keys: set[str]) -> set[str]:
        """Those of ``keys`` that wait or are being worked on."""
        there_and_back = (self._jobs, self._leases, self._jobs)  # a job may move while we look
        return keys & {entry.key for folder in there_and_back for entry in _entries(folder)}

    def claim(self, worker: str, backends: Sequence[str]) -> tuple[Entry, str] | None:
        """Take the oldest job of one of ``backends``; its entry and its text, or None when nothing waits."""
        waiting = [entry for entry in _entries(self._jobs) if entry.backend in backends]
        for entry in sorted(waiting, key=lambda item: _modified(self._jobs / item.name) or 0.0):
            held = entry.held_by(worker)
            try:
                (self._jobs / entry.name).rename(self._leases / held.name)
                text = (self._leases / held.name).read_text(encoding="utf-8")
            except FileNotFoundError:
                continue  # another worker was faster
            if not self.has_result(entry.key):
                return held, text
            self.release(held)
        return None

    def claimed_by(self, worker: str) -> int:
        """How many jobs a worker has."""
        return sum(entry.worker == worker for entry in _entries(self._leases))

    def release(self, held: Entry) -> None:
        """Drop a lease whose job is done."""
        (self._leases / held.name).unlink(missing_ok=True)

    def give_back(self, held: Entry) -> None:
        """Put a claimed job back for others."""
        with suppress(FileNotFoundError):
            (self._leases / held.name).rename(self._jobs / held.waiting(lost=False).name)

    def withdraw(self, key: str) -> None:
        """Take a job that nobody has claimed out of the queue."""
        for entry in _entries(self._jobs):
            if entry.key == key:
                (self._jobs / entry.name).unlink(missing_ok=True)

    def publish(self, key: str, measurement: Measurement) -> bool:
        """Make a result known; False when there was one before, which stays."""
        return _write_new(self._results / f"{key}.json", encode(measurement))

    def has_result(self, key: str) -> bool:
        """Whether the result of a job is known."""
        return (self._results / f"{key}.json").exists()

    def result(self, key: str) -> Measurement | None:
        """The result of a job; None when it is not known."""
        try:
            text = (self._results / f"{key}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return decode(Measurement, json.loads(text))
        except ValueError as problem:
            raise BadInputError(f"result {key} in {self.path} is damaged: {problem}", "delete it") from problem

    def forget(self, key: str) -> None:
        """Delete the result of a job, which can then be done anew."""
        (self._results / f"{key}.json").unlink(missing_ok=True)

    def beat(self, card: Card) -> float:
        """Say that a worker lives; returns the time of the file system."""
        path = self._workers / f"{card.worker}.json"
        try:
            os.utime(path)
        except FileNotFoundError:
            _write(path, encode(card))
        return _modified(path) or 0.0

    def now(self) -> float:
        """The time of the file system."""
        return file_time(self._workers)

    def leave(self, worker: str) -> None:
        """Take a worker off the list; what it still holds goes to others at once."""
        (self._workers / f"{worker}.json").unlink(missing_ok=True)

    def living(self, now: float) -> list[Card]:
        """Workers with a fresh heartbeat."""
        return [card for path, card in self._cards() if now - (_modified(path) or 0.0) <= self.lease_s]

    def repair(self, now: float) -> int:
        """Put the jobs of lost workers back and return how many.

        A job that has lost :data:`ATTEMPTS` workers gets a result that says so.
        """
        held = _entries(self._leases)  # before the workers: one that joins now is not among those that hold something
        alive = {card.worker for card in self.living(now)}
        orphans = [entry for entry in held if entry.worker not in alive]
        for entry in orphans:
            self._retry(entry)
        for path, card in self._cards():
            if card.worker not in alive:
                path.unlink(missing_ok=True)
        return len(orphans)

    def sweep(self, now: float) -> None:
        """Delete results that nobody fetched for a week, and what killed processes had half written."""
        for folder in (self._jobs, self._results, self._workers):
            for path in folder.iterdir():
                keep_s = PART_S if path.name.startswith(".") else KEEP_S
                if now - (_modified(path) or now) > keep_s and (keep_s == PART_S or folder is self._results):
                    path.unlink(missing_ok=True)

    def _retry(self, entry: Entry) -> None:
        again = entry.waiting(lost=True)
        if self.has_result(entry.key):
            self.release(entry)
        elif again.attempt < ATTEMPTS:
            with suppress(FileNotFoundError):  # another side was faster
                (self._leases / entry.name).rename(self._jobs / again.name)
        else:
            error = f"{ATTEMPTS} workers were lost while they had this job, the last one was {entry.worker}"
            lost = Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device="", error=error)
            self.publish(entry.key, lost)
            self.release(entry)

    def _cards(self) -> Iterator[tuple[Path, Card]]:
        for path in sorted(self._workers.glob("[!.]*.json")):
            with suppress(OSError, ValueError, BadInputError):  # it left, or is being written
                yield path, decode(Card, json.loads(path.read_text(encoding="utf-8")))


def file_time(folder: Path) -> float:
    """Now, by the clock of the file system that holds ``folder``."""
    with tempfile.TemporaryFile(dir=folder, prefix=".clock-") as probe:
        return os.fstat(probe.fileno()).st_mtime


def _entries(folder: Path) -> list[Entry]:
    return [entry for path in folder.iterdir() if (entry := Entry.parse(path.name)) is not None]


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _write(path: Path, value: Any) -> None:
    _written(path, value, lambda part: part.replace(path))


def _write_new(path: Path, value: Any) -> bool:
    """Write unless the file is there: a hard link, unlike a rename, refuses to replace."""
    try:
        _written(path, value, lambda part: path.hardlink_to(part))
    except FileExistsError:
        return False
    return True


def _written(path: Path, value: Any, finish: Callable[[Path], Any]) -> None:
    """Let ``finish`` give ``path`` its name once all of it is on disk."""
    part = path.with_name(f".{path.name[:64]}-{secrets.token_hex(4)}")
    try:
        with part.open("x", encoding="utf-8") as file:
            json.dump(value, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        finish(part)
    finally:
        part.unlink(missing_ok=True)
