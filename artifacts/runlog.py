"""Run directories: an append-only log of everything that was paid for or measured.

Layout::

    RUN/manifest.json         what the run is: settings, tasks, memory reference; written once
    RUN/events.jsonl          one event a line, written before it counts
    RUN/candidates/<sha>.py   sources by identity

A run that is over may be packed (``events.jsonl.gz``, ``candidates.zip``, see :mod:`artifacts.run_files`): everything
reads it so, and to be written to again it is unpacked first.

A line that was cut by a crash is dropped on reading and cut off before the next append, so a run
that was killed at any point continues from its last whole event. Events that cost something
(:data:`PAID_KINDS`) reach the disk before they count, and with them all events before; the others can be derived
again and survive the process, not a power cut. Only one process may write.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from artifacts.candidate import normalise_source
from artifacts.errors import RunLogError
from artifacts.run_files import (
    CANDIDATES,
    EVENTS,
    MANIFEST,
    CandidateFiles,
    event_lines,
    events_file,
    pack_events,
    takes_no_more,
    unpack_events,
    written_whole,
)

SCHEMA_VERSION = 1
EVENT_KINDS = (
    "task_started",
    "choice",
    "request",
    "answer",
    "candidate",
    "measurement",
    "step",
    "task_finished",
    "steps_changed",
    "note",
)
"""What may happen in a run; payload records are in :mod:`artifacts.run_events`."""

PAID_KINDS = frozenset({"answer", "measurement", "task_finished", "steps_changed", "note"})
"""Events that nothing else in the log could bring back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of ``events.jsonl``.

    Attributes:
        seq: position in the log, from 0.
        time: seconds since the epoch when it was written.
        key: name of the effect that the event answers, unique among events of its kind; may be empty.
    """

    seq: int
    time: float
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""

    def __post_init__(self) -> None:
        if self.kind not in EVENT_KINDS:
            raise ValueError(f"unknown event kind {self.kind!r}, one of {', '.join(EVENT_KINDS)}")


class RunLog:
    """A run directory opened for reading, and for writing once something is appended."""

    def __init__(self, path: Path, manifest: Mapping[str, Any], *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.manifest = manifest
        self._clock = clock
        self._candidates = CandidateFiles(path)
        self._file: IO[bytes] | None = None
        self._next_seq = 0
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunLog:
        """Make a new run directory.

        Raises:
            RunLogError: the directory already holds a run, or anything else.
        """
        if path.exists() and any(item.name != f"{MANIFEST}.part" for item in path.iterdir()):
            raise RunLogError(f"{path} is not empty", "choose a new directory, or resume the run that is there")
        (path / CANDIDATES[0]).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2, sort_keys=True)
        with written_whole(path / MANIFEST) as file:
            file.write(text.encode())
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunLog:
        """Open an existing run directory; nothing is changed until something is appended.

        Raises:
            RunLogError: there is no run, or it was written by another schema version.
        """
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError as problem:
            raise RunLogError(f"{path} is no run directory: it has no manifest.json", "check the path") from problem
        except (OSError, ValueError) as problem:
            raise RunLogError(f"{path}/manifest.json cannot be read: {problem}", "restore the file") from problem
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        if version != SCHEMA_VERSION:
            raise RunLogError(f"{path} has run schema version {version!r}", f"this HTAM reads version {SCHEMA_VERSION}")
        return cls(path, manifest)

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether ``path`` holds a run."""
        folder, packed = (path / name for name in CANDIDATES)
        return (path / MANIFEST).is_file() and (folder.is_dir() or packed.is_file())

    def events(self) -> Iterator[Event]:
        """Yield all whole events in order; a torn last line is left out.

        Raises:
            RunLogError: a line before the last is damaged, or sequence numbers have a gap.
        """
        for event, _ in self._read():
            yield event

    def append(self, kind: str, payload: Mapping[str, Any], *, key: str = "") -> Event:
        """Write one event and return it once it is safe: on disk when it is of :data:`PAID_KINDS`.

        Raises:
            RunLogError: another process is writing to this run.
        """
        with self._lock:
            file = self._file or self._open_for_writing()
            event = Event(seq=self._next_seq, time=self._clock(), kind=kind, payload=payload, key=key)
            file.write(_encode_line(event))
            file.flush()
            if kind in PAID_KINDS:
                os.fsync(file.fileno())
            self._next_seq += 1
            return event

    def add_candidate(self, source: str, *, sync: bool = False) -> str:
        """Store a source under its identity and return that identity (hex SHA-256).

        Args:
            sync: bring it to the disk, for sources that no logged answer holds.

        Raises:
            RunLogError: the run is packed and does not hold it.
        """
        return self._candidates.add(source, sync=sync)

    def candidates(self) -> tuple[str, ...]:
        """Identities of all stored candidates, sorted.

        Raises:
            RunLogError: they are packed and damaged.
        """
        return self._candidates.identities()

    def candidate(self, sha256: str) -> str:
        """Source of a stored candidate.

        Raises:
            RunLogError: it is missing, damaged or was changed.
        """
        return normalise_source(self._candidates.read(sha256).decode("utf-8", "surrogatepass"))

    def pack(self) -> None:
        """Keep events and candidates of a run that is over in one compressed file each; equal runs give equal bytes.

        Raises:
            RunLogError: another process is writing to this run, or something in it is damaged.
        """
        with self._alone():
            self._candidates.pack()
            pack_events(self.path)

    def unpack(self) -> None:
        """Undo :meth:`pack`, so that the run can be written to again.

        Raises:
            RunLogError: as :meth:`pack`.
        """
        with self._alone():
            self._candidates.unpack()
            unpack_events(self.path)

    def close(self) -> None:
        """Release the writer's lock; reading stays possible."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the writer's lock, whatever form the events have."""
        events = events_file(self.path)
        if events.name == EVENTS[0]:
            with self._lock:
                self._file = self._file or self._open_for_writing()
            try:
                yield
            finally:
                self.close()
            return
        with events.open("rb") as file:
            self._take(file)
            yield

    def _take(self, file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            file.close()
            raise RunLogError(f"another process is writing to {self.path}", "wait for it, or end it") from problem

    def _open_for_writing(self) -> IO[bytes]:
        events = events_file(self.path)
        if events.name != EVENTS[0]:
            raise takes_no_more(events)
        file = events.open("ab")
        self._take(file)
        whole = 0
        for event, end in self._read():
            whole, self._next_seq = end, event.seq + 1
        file.truncate(whole)
        self._file = file
        return file

    def _read(self) -> Iterator[tuple[Event, int]]:
        """Yield events with the byte offset of their end."""
        path = events_file(self.path)
        if not path.exists():
            return
        end = 0
        for number, line in enumerate(event_lines(path)):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield _decode_line(line, path, number), end


def _encode_line(event: Event) -> bytes:
    data = {"v": SCHEMA_VERSION, "seq": event.seq, "time": event.time, "kind": event.kind, "key": event.key}
    text = json.dumps({**data, "payload": event.payload}, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii") + b"\n"


def _decode_line(line: bytes, path: Path, expected: int) -> Event:
    where = f"{path}:{expected + 1}"
    try:
        data = json.loads(line)
        version, seq = data["v"], data["seq"]
        event = Event(seq=seq, time=data["time"], kind=data["kind"], key=data["key"], payload=data["payload"])
    except (ValueError, KeyError, TypeError) as problem:
        raise RunLogError(f"{where} is damaged: {problem}", "restore the file") from problem
    if version != SCHEMA_VERSION:
        raise RunLogError(f"{where} has schema version {version!r}", f"this HTAM reads version {SCHEMA_VERSION}")
    if seq != expected:
        raise RunLogError(f"{where} has sequence number {seq} where {expected} belongs", "restore the file")
    return event
