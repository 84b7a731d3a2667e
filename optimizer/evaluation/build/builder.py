"""Cache first, then fast routes, then the stock route."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.first_error import first_error
from optimizer.evaluation.build.cache import BuildCache, Entry
from optimizer.evaluation.build.command import (
    NICENESS,
    BuildTimeoutError,
    CompilerSlots,
    ProcessRunner,
    Stop,
    scrubbed_environment,
)
from optimizer.evaluation.build.fast import FastRoute
from optimizer.evaluation.build.request import Attempt, BuildRequest, Route, write_files
from optimizer.evaluation.build.toolchain import detect_toolchain


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
        timeout_s: limit of one route's attempt.
    """

    def __init__(self, cache: BuildCache, routes: Sequence[Route], fingerprint: str, timeout_s: float = 300.0) -> None:
        self._cache = cache
        self._routes = tuple(routes)
        self._fingerprint = fingerprint
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


def default_root() -> Path:
    """``$HTAM_BUILD_CACHE``, else a folder in the user's cache."""
    named = os.environ.get("HTAM_BUILD_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "htam" / "builds"


def standard_builder(root: Path) -> LocalBuilder:
    """A builder over the cache at ``root`` with the fast routes first; compilers queue for cores."""
    toolchain = detect_toolchain()
    cache = BuildCache(root)
    cache.sweep()
    compilers = CompilerSlots(os.cpu_count() or 1)
    fast: list[Route] = [FastRoute(toolchain, cache, split=split, slots=compilers) for split in (True, False)]
    routes = [*fast, StockRoute(arch=toolchain.arch)]
    return LocalBuilder(cache, routes, toolchain.fingerprint)


_LIMIT = 20_000

_PROGRAM = """
import json, sys
from torch.utils import cpp_extension
cpp_extension._import_module_from_library = lambda *ignored: None  # build only, load nothing here
order = json.load(open(sys.argv[1]))
cpp_extension.load(**order)
"""


class StockRoute:
    """Calls ``torch.utils.cpp_extension.load`` on the same files and flags.

    Args:
        arch: compute capability to build for, as ``90``; empty lets torch ask the driver.
    """

    name = "stock"

    def __init__(self, arch: str = "") -> None:
        environment = scrubbed_environment()
        if arch:
            environment["TORCH_CUDA_ARCH_LIST"] = f"{arch[:-1]}.{arch[-1]}" if arch[-1].isdigit() else _suffixed(arch)
        # Whoever comes here has waited for a fast route already: it is the last candidate of a batch to be decided.
        self._runner = ProcessRunner(environment, niceness=NICENESS // 2)

    def supports(self, request: BuildRequest) -> bool:
        """Anything: this route decides."""
        return True

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        """See :class:`optimizer.evaluation.build.request.Route`."""
        sources = write_files(request, directory)
        order = {
            "name": request.name,
            "sources": [str(path) for path in sources],
            "extra_cflags": list(request.cflags),
            "extra_cuda_cflags": list(request.cuda_cflags),
            "extra_ldflags": list(request.ldflags),
            "extra_include_paths": list(request.include_paths),
            "build_directory": str(directory),
            "with_cuda": request.with_cuda,
        }
        (directory / "order.json").write_text(json.dumps(order), encoding="utf-8")
        done = self._runner.run([sys.executable, "-P", "-c", _PROGRAM, "order.json"], directory, timeout_s, stop)
        library = directory / f"{request.name}.so"
        return Attempt(
            library=library if done.status == 0 and library.is_file() else None,
            log=_compiler_part(done.output, directory),
        )


def _suffixed(arch: str) -> str:
    """``90a`` → ``9.0a``."""
    return f"{arch[:-2]}.{arch[-2:]}"


_HEAD = re.compile(r".*Error building extension '[^']*':? ?", re.DOTALL)
_NOISE = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: |In file included from | {10,}from \S+[,:]$")


def _compiler_part(output: str, directory: Path) -> str:
    """What the compilers said: without the traceback that repeats it, ninja's own lines and the ways to headers.

    The first errors say most, so they are kept where there are too many.
    """
    lines = _HEAD.sub("", output).replace(f"{directory}/", "").splitlines()
    calls = {line.partition("] ")[2].strip() for line in lines}
    said = [line for line in lines if not _NOISE.match(line) and line.strip() not in calls]
    return "\n".join(said)[:_LIMIT]
