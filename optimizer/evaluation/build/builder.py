"""Cache first, then fast routes, then the stock route."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from optimizer.evaluation.build.cache import BuildCache, Entry
from optimizer.evaluation.build.command import BuildTimeoutError, Stop
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.build.route import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """A library or the reason why there is none.

    Attributes:
        library: path of the shared object, empty when the sources do not build.
        route: which route decided; ``log``: its compiler output.
        seconds: wall-clock time this request took here (near zero from the cache).
        cached: True when nothing was compiled.
        fallbacks: fast routes that failed before, as ``route: reason``.
    """

    library: str
    route: str
    log: str = ""
    seconds: float = 0.0
    cached: bool = False
    fallbacks: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Lines for a measurement's notes: nothing to say when the first fast route worked."""
        return tuple(f"build: fast route failed, {self.route} route decided: {line}" for line in self.fallbacks)


class Builder(Protocol):
    """Turns requests into libraries; implementations: local, at the other end of a socket, fakes.

    Contract: sources that do not compile are a result without a library, never an exception;
    :class:`optimizer.evaluation.build.command.BuildTimeoutError` when the time is up, or soon after ``stop`` is set
    because nobody waits any more; nothing is learnt of the sources then. Thread-safe.
    """

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """Build or find the library of ``request``."""
        ...


class LocalBuilder:
    """Builds in child processes of this one.

    Args:
        cache: where libraries live.
        routes: in the order to try; the last one's verdict counts.
        fingerprint: of the toolchain, part of each key.
        slots: how many builds may compile at a time; others wait.
        timeout_s: limit of one route's attempt.
    """

    def __init__(
        self, cache: BuildCache, routes: Sequence[Route], fingerprint: str, slots: int = 1, timeout_s: float = 300.0
    ) -> None:
        self._cache = cache
        self._routes = tuple(routes)
        self._fingerprint = fingerprint
        self._slots = threading.BoundedSemaphore(slots)
        self._timeout_s = timeout_s

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """See :class:`Builder`."""
        start = time.monotonic()
        key = request.key(self._fingerprint)
        found = self._cache.find(key)
        if found is None:
            with self._cache.lock(key):
                found = self._cache.find(key)
                if found is None:
                    entry, directory = self._compile(key, request, stop)
                    return _result(entry, directory, start, cached=False)
        return _result(*found, start, cached=True)

    def _compile(self, key: str, request: BuildRequest, stop: Stop | None) -> tuple[Entry, Path]:
        start = time.monotonic()
        fallbacks: list[str] = []
        with self._slots:
            for route in self._candidates(request):
                with self._cache.workspace() as directory:
                    _still_wanted(stop)
                    attempt = route.build(request, directory, self._timeout_s, stop)
                    if attempt.library is None:
                        _still_wanted(stop)  # a compiler that was stopped says nothing about the sources
                    if attempt.library is None and route is not self._routes[-1]:
                        fallbacks.append(f"{route.name}: {first_error(attempt.log)}")
                        continue
                    entry = Entry(
                        name=request.name,
                        library=attempt.library.name if attempt.library else "",
                        route=route.name,
                        log=attempt.log,
                        seconds=time.monotonic() - start,
                        fallbacks=tuple(fallbacks),
                    )
                    return entry, self._cache.publish(key, entry, attempt.library)
        raise AssertionError("a builder needs at least one route")

    def _candidates(self, request: BuildRequest) -> list[Route]:
        """The first fast route that will do, then the one that decides.

        After a fast route has failed the sources are usually wrong, so another fast one would only delay the verdict.
        """
        fast = [route for route in self._routes[:-1] if request.fast and route.supports(request)]
        return [*fast[:1], self._routes[-1]]


def _still_wanted(stop: Stop | None) -> None:
    if stop is not None and stop.is_set():
        raise BuildTimeoutError("nobody waits for this build any more")


def _result(entry: Entry, directory: Path, start: float, *, cached: bool) -> BuildResult:
    return BuildResult(
        library=str(directory / entry.library) if entry.built else "",
        route=entry.route,
        log=entry.log,
        seconds=time.monotonic() - start,
        cached=cached,
        fallbacks=entry.fallbacks,
    )


def first_error(log: str) -> str:
    """The first line of compiler output that names an error, shortened."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    return (errors or lines or ["no output"])[0][:300]
