"""Run directories: an append-only log of everything that was paid for or measured.

Layout::

    RUN/manifest.json         what the run is: settings, tasks, memory reference; written once
    RUN/events.jsonl          one event a line, written before it counts; events.jsonl.gz of a run that is over
    RUN/candidates/<sha>.py   sources by identity

A line that was cut by a crash is dropped on reading and cut off before the next append, so a run
that was killed at any point continues from its last whole event. Events that cost something
(:data:`PAID_KINDS`) reach the disk before they count, and with them all events before; the others can be derived
again and survive the process, not a power cut. Only one process may write.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from artifacts.candidate import normalise_source, source_hash
from artifacts.errors import RunLogError

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
        self._file: IO[bytes] | None = None
        self._next_seq = 0
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path, manifest: Mapping[str, Any]) -> RunLog:
        """Make a new run directory.

        Raises:
            RunLogError: the directory already holds a run, or anything else.
        """
        if path.exists() and any(item.name != "manifest.json.part" for item in path.iterdir()):
            raise RunLogError(f"{path} is not empty", "choose a new directory, or resume the run that is there")
        (path / "candidates").mkdir(parents=True, exist_ok=True)
        part = path / "manifest.json.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump({"schema_version": SCHEMA_VERSION, **manifest}, file, indent=2, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path / "manifest.json")
        _sync_directory(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> RunLog:
        """Open an existing run directory; nothing is changed until something is appended.

        Raises:
            RunLogError: there is no run, or it was written by another schema version.
        """
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
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
        return (path / "manifest.json").is_file() and (path / "candidates").is_dir()

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
        """
        sha256, data = source_hash(source), normalise_source(source).encode("utf-8", "surrogatepass")
        target = self._candidate_path(sha256)
        if not target.exists() or target.read_bytes() != data:
            part = target.with_suffix(f".{threading.get_ident()}.part")
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            part.replace(target)
        return sha256

    def candidate(self, sha256: str) -> str:
        """Source of a stored candidate.

        Raises:
            RunLogError: it is missing or was changed.
        """
        try:
            source = self._candidate_path(sha256).read_text(encoding="utf-8", errors="surrogatepass")
        except OSError as problem:
            raise RunLogError(f"{self.path} lacks candidate {sha256[:12]}", "restore candidates/") from problem
        if source_hash(source) != sha256:
            raise RunLogError(f"{self.path}/candidates/{sha256}.py was changed", "restore the file")
        return source

    def close(self) -> None:
        """Release the writer's lock; reading stays possible."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _packed(self) -> Path:
        return self.path / "events.jsonl.gz"

    def _candidate_path(self, sha256: str) -> Path:
        return self.path / "candidates" / f"{sha256}.py"

    def _open_for_writing(self) -> IO[bytes]:
        if self._packed.exists():
            raise RunLogError(f"{self._packed} is packed and takes no more events", f"gunzip {self._packed} first")
        file = (self.path / "events.jsonl").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            file.close()
            raise RunLogError(f"another process is writing to {self.path}", "wait for it, or end it") from problem
        whole = 0
        for event, end in self._read():
            whole, self._next_seq = end, event.seq + 1
        file.truncate(whole)
        self._file = file
        return file

    def _read(self) -> Iterator[tuple[Event, int]]:
        """Yield events with the byte offset of their end."""
        path = self._packed if self._packed.exists() else self.path / "events.jsonl"
        if not path.exists():
            return
        end, expected = 0, 0
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                end += len(line)
                event = _decode_line(line, path, expected)
                expected += 1
                yield event, end


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


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
