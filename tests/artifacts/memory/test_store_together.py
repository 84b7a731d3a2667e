"""One store, many users at once: nobody ever sees a version that is not whole."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from artifacts.errors import ArtifactError
from artifacts.memory import files as files_module
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.schemas import SCHEMAS
from artifacts.memory.store import LATEST, MemoryStore

Build = Callable[..., Memory]
PUBLISHERS = 2
READERS = 10
ROUNDS = 6
PATIENCE_S = 240


@pytest.fixture
def three(build: Build, transitions: list[Transition]) -> list[Memory]:
    return [build(transitions[:count]) for count in (3, 6, 9)]


@pytest.fixture
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["artifacts.memory.store"])
    return context


def publish_by_turns(url: str, memories: list[Memory], first: int) -> None:
    """Publish one memory after the other, beginning with a different one in each process."""
    store = MemoryStore(url)
    for turn in range(ROUNDS):
        store.publish(memories[(first + turn) % len(memories)])


def read_until(url: str, stop: Any, told: Any) -> None:
    """Load and verify ``latest`` until told to stop; tells which versions were seen, or what went wrong."""
    seen: Counter[str] = Counter()
    try:
        while not stop.is_set() or not seen:
            store = MemoryStore(url)
            loaded = store.load("demo")
            store.verify("demo", loaded.manifest.version)
            seen[loaded.manifest.version] += 1
    except Exception as problem:  # noqa: BLE001 — whatever a reader meets is what this test is about
        told.put(f"{type(problem).__name__}: {problem}")
    else:
        told.put(dict(seen))


def publish_and_die(url: str, memory: Memory, writes: int) -> None:
    """Publish, and be killed in the middle of a write."""
    write, left = files_module.write_durably, iter(range(writes))

    def deadly(path: Path, data: bytes) -> None:
        if next(left, None) is None:
            path.write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, data)

    files_module.write_durably = deadly
    MemoryStore(url).publish(memory)


def test_two_publishers_and_ten_readers_of_a_folder_never_see_half_a_version(
    tmp_path: Path, three: list[Memory], processes: Any
) -> None:
    url = str(tmp_path)
    store = MemoryStore(url)
    known = {store.publish(three[0]).version}
    stop, told = processes.Event(), processes.Queue()
    readers = [processes.Process(target=read_until, args=(url, stop, told)) for _ in range(READERS)]
    publishers = [
        processes.Process(target=publish_by_turns, args=(url, three[:2], number)) for number in range(PUBLISHERS)
    ]
    dying = [processes.Process(target=publish_and_die, args=(url, three[2], writes)) for writes in range(5)]
    for process in (*readers, *publishers, *dying):
        process.start()
    for process in (*publishers, *dying):
        process.join(PATIENCE_S)
    stop.set()
    found = [told.get(timeout=PATIENCE_S) for _ in readers]
    for process in readers:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in publishers] == [0] * PUBLISHERS
    assert [process.exitcode for process in dying] == [-signal.SIGKILL] * len(dying)
    assert [what for what in found if isinstance(what, str)] == []
    known.add(store.publish(three[1]).version)
    assert {version for seen in found for version in seen} <= known
    assert set(store.versions("demo")) == known
    assert store.tagged("demo", LATEST) in known


def test_two_publishers_and_ten_readers_of_an_object_store_never_see_half_a_version(three: list[Memory]) -> None:
    url = f"memory://{uuid4().hex}"
    store = MemoryStore(url)
    store.publish(three[0])
    stop, told = threading.Event(), _Told()
    readers = [threading.Thread(target=read_until, args=(url, stop, told)) for _ in range(READERS)]
    publishers = [threading.Thread(target=publish_by_turns, args=(url, three, number)) for number in range(PUBLISHERS)]
    for thread in (*readers, *publishers):
        thread.start()
    for thread in publishers:
        thread.join(PATIENCE_S)
    stop.set()
    for thread in readers:
        thread.join(PATIENCE_S)
    assert [what for what in told.said if isinstance(what, str)] == []
    assert len(told.said) == READERS
    assert len(store.versions("demo")) == len(three)
    for version in store.versions("demo"):
        store.verify("demo", version)
    assert store.tagged("demo", LATEST) in store.versions("demo")


def test_a_publisher_that_was_killed_on_an_object_store_leaves_no_version(three: list[Memory]) -> None:
    url = f"memory://{uuid4().hex}"
    store = MemoryStore(url)
    first = store.publish(three[0]).version
    whole = MemoryStore(f"memory://{uuid4().hex}")
    other = whole.publish(three[1]).version
    for file in (f"{name}.parquet" for name in SCHEMAS):  # the manifest comes last
        store.files.write(whole.files.read("demo", other, file), "demo", other, file)
        assert store.versions("demo") == (first,)
        with pytest.raises(ArtifactError):
            store.load("demo", other)
    assert store.load("demo").manifest.version == first
    assert store.publish(three[1]).version == other
    store.verify("demo", other)


class _Told:
    """A queue for threads of this process."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def put(self, what: object) -> None:
        self.said.append(what)
