"""A build that nobody waits for any more ends, and nothing is learnt of its sources."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.codec import encode
from optimizer.evaluation.build.builder import LocalBuilder
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import ProcessRunner, Stop
from optimizer.evaluation.build.remote import BuildServer
from optimizer.evaluation.build.request import Attempt, BuildRequest, SourceFile

REQUEST = BuildRequest(name="m", files=(SourceFile(name="main.cpp", text="int x;"),))
LONG_S = 600


class SlowRoute:
    """Compiles for ten minutes, or until it is stopped; says when it began and when it ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began, self.ended = threading.Event(), threading.Event()

    def supports(self, request: BuildRequest) -> bool:
        return True

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        self.began.set()
        done = ProcessRunner().run(["sleep", str(LONG_S)], directory, timeout_s, stop)
        self.ended.set()
        return Attempt(library=None, log=f"ended with {done.status}")


@pytest.fixture
def routes() -> tuple[SlowRoute, SlowRoute]:
    return SlowRoute("fast"), SlowRoute("stock")


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path)


@pytest.fixture
def server(cache: BuildCache, routes: tuple[SlowRoute, SlowRoute]) -> Iterator[BuildServer]:
    server = BuildServer(LocalBuilder(cache, routes, "toolchain", timeout_s=2 * LONG_S))
    yield server
    server.close()


@pytest.fixture
def client(server: BuildServer, routes: tuple[SlowRoute, SlowRoute]) -> Iterator[socket.socket]:
    """Whoever asked for a build that is under way."""
    with server.open_channel() as channel:
        channel.sendall(json.dumps(encode(REQUEST)).encode() + b"\n")
        assert routes[0].began.wait(LONG_S)
        yield channel


def test_a_build_ends_with_the_process_that_asked_for_it(
    client: socket.socket, server: BuildServer, cache: BuildCache, routes: tuple[SlowRoute, SlowRoute]
) -> None:
    client.close()
    assert routes[0].ended.wait(LONG_S / 2)
    server.close()
    assert not routes[1].began.is_set()
    assert cache.find(REQUEST.key("toolchain")) is None


def test_a_server_that_closes_leaves_no_compiler(
    client: socket.socket, server: BuildServer, routes: tuple[SlowRoute, SlowRoute]
) -> None:
    server.close()
    assert routes[0].ended.wait(LONG_S / 2)
    assert not routes[1].began.is_set()
    assert client.recv(1) == b""
