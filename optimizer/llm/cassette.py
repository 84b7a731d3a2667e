"""Recordings of answers, so that the same run can be made again without a model."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from pathlib import Path

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, UnavailableError
from optimizer.llm.budget import Spent, spent_on
from optimizer.llm.protocol import LlmAnswer, LlmClient, LlmRequest

SCHEMA = 1
"""Version of a cassette line; a reader refuses others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a cassette: an answer, and the labels of its request; the texts asked are in the run's log."""

    key: str
    model: str
    purpose: str
    task: str
    slot: str
    sample: int
    answer: LlmAnswer
    schema: int = SCHEMA


class Cassette:
    """An append-only JSONL file of entries, one writer at a time; the first entry of a key wins.

    Each append reaches the disk before it returns, because an answer may have cost money; a last line that a crash cut
    does not count.

    Args:
        path: the file; created, with its folders, when it is opened for writing.
        writable: take the writer's lock, which lasts until :meth:`close`.

    Raises:
        BadInputError: the file cannot be read, is no cassette, has an unknown version, or another process writes to it.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        self._file = _open_locked(path) if writable else None
        try:
            self._entries, self._whole = _read(path)
        except BadInputError:
            self.close()
            raise
        self._by_key: dict[str, Entry] = {}
        for entry in self._entries:
            self._by_key.setdefault(entry.key, entry)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def spent(self) -> Spent:
        """What all answers in it took when they were recorded: what a run has used, even one that was killed."""
        return sum((spent_on(entry.answer) for entry in self._entries), Spent())

    def find(self, key: str) -> LlmAnswer | None:
        """Answer recorded for a request key, marked as recorded; None when there is none."""
        entry = self._by_key.get(key)
        return None if entry is None else replace(entry.answer, recorded=True)

    def append(self, request: LlmRequest, answer: LlmAnswer) -> None:
        """Record ``answer``; a key that is there already is left alone.

        Raises:
            BadInputError: it was opened for reading.
            UnavailableError: the disk does not take it; nothing of it is left in the file.
        """
        if request.key in self._by_key:
            return
        labels = {name: getattr(request, name) for name in ("key", "model", "purpose", "task", "slot", "sample")}
        entry = Entry(**labels, answer=answer)
        self._write(json.dumps(encode(entry), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n")
        self._by_key[entry.key] = entry
        self._entries.append(entry)

    def close(self) -> None:
        """Release the file and its lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._file is None:
            raise BadInputError(f"{self.path} was opened for reading", "open it with writable=True")
        try:
            self._file.truncate(self._whole)
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            os.fsync(self._file.fileno())
        except OSError as problem:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole)
            raise UnavailableError(
                f"cannot write {self.path}: {problem.strerror}", "make room, then resume"
            ) from problem
        self._whole += len(line)


def _open_locked(path: Path) -> io.FileIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.FileIO(path, "ab")  # unbuffered, so that nothing of a failed write is left to be written later
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        file.close()
        raise BadInputError(f"another process writes to {path}", "wait for it or choose another file") from problem
    return file


def _read(path: Path) -> tuple[list[Entry], int]:
    """All whole lines, and the offset of their end."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BadInputError(f"cannot read {path}: {problem.strerror}", "check the path") from problem
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].split(b"\n")[:-1]
    return [_entry(line, f"{path} line {number}") for number, line in enumerate(lines, start=1)], whole


def _entry(line: bytes, where: str) -> Entry:
    try:
        record = json.loads(line)
    except ValueError as problem:
        raise BadInputError(f"{where} is not JSON", "the file was damaged, or is another") from problem
    if not isinstance(record, dict):
        raise BadInputError(f"{where} is no JSON object", "the file was damaged, or is another")
    if record.get("schema") != SCHEMA:
        raise BadInputError(f"{where} has cassette schema {record.get('schema')!r}", f"this version reads {SCHEMA}")
    try:
        return decode(Entry, record)
    except BadInputError as problem:
        raise BadInputError(f"{where}: {problem.what}", problem.fix) from problem


class RecordingClient:
    """Asks another client and keeps every answer; what was recorded, or is being asked, is never asked again."""

    def __init__(self, inner: LlmClient, cassette: Cassette) -> None:
        self._inner = inner
        self._cassette = cassette
        self._open: dict[str, asyncio.Task[LlmAnswer]] = {}

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Answer from the cassette, from a call under way, or from the inner client.

        The call goes on and is recorded even when the caller that started it is cancelled.
        """
        key = request.key
        known = self._cassette.find(key)
        if known is not None:
            return known
        task = self._open.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(request))
            self._open[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    async def _ask(self, request: LlmRequest) -> LlmAnswer:
        answer = await self._inner.complete(request)
        self._cassette.append(request, answer)
        return answer

    def _forget(self, key: str, done: asyncio.Task[LlmAnswer]) -> None:
        self._open.pop(key, None)
        if not done.cancelled():
            done.exception()  # read once, so that an abandoned failure is not reported a second time

    async def close(self) -> None:
        """Wait for calls under way, then release the inner client and the file."""
        if self._open:
            await asyncio.wait(self._open.values())
        await self._inner.close()
        self._cassette.close()


class ReplayClient:
    """Answers from a recording only.

    Requests hold measured times, so on another machine the same run asks slightly different questions. An unknown
    request gets the answer recorded for the same task and place in the run, each at most once, and its notes say so.
    """

    def __init__(self, cassette: Cassette) -> None:
        self._cassette = cassette
        self._slots: dict[tuple[str, str], deque[Entry]] = defaultdict(deque)
        for entry in cassette.entries:
            self._slots[entry.task, entry.slot].append(entry)

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Return the recorded answer.

        Raises:
            UnavailableError: nothing was recorded there, or it was used.
        """
        known = self._cassette.find(request.key)
        if known is not None:
            return known
        slot = self._slots[request.task, request.slot]
        if not slot:
            what = f"{self._cassette.path} holds no further answer to {request.where}"
            raise UnavailableError(f"{what}: {_recorded(self._cassette, request)}", "record the run again")
        answer = slot.popleft().answer
        note = f"recorded for another wording of {request.where}"
        return replace(answer, recorded=True, notes=(*answer.notes, note))

    async def close(self) -> None:
        """Release the file."""
        self._cassette.close()


def _recorded(cassette: Cassette, request: LlmRequest) -> str:
    """What a recording holds instead of an answer to ``request``."""
    tasks = sorted({entry.task for entry in cassette.entries})
    slots = [entry.slot for entry in cassette.entries if entry.task == request.task]
    if request.task not in tasks:
        return f"it knows {', '.join(tasks)}" if tasks else "it is empty"
    return f"of this task it holds {', '.join(sorted(set(slots)))}, each answer for one question"
