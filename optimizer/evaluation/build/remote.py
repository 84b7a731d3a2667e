"""A builder at the other end of a socket, and a candidate's load_inline calls sent to it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from optimizer.evaluation.build.builder import Builder, BuildResult
from optimizer.evaluation.build.command import BuildTimeoutError, Stop
from optimizer.evaluation.build.request import BuildRequest, SourceFile

_LINE_LIMIT = 64 << 20
_CLOSE_S = 10.0


class RemoteBuilder:
    """The client's end; give it the socket that :meth:`BuildServer.open_channel` made."""

    def __init__(self, channel: socket.socket) -> None:
        self._stream = channel.makefile("rwb")
        self._lock = threading.Lock()

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """See :class:`optimizer.evaluation.build.builder.Builder`; who asks here stops by hanging up."""
        with self._lock:
            self._stream.write(json.dumps(encode(request)).encode() + b"\n")
            self._stream.flush()
            reply = json.loads(self._stream.readline() or b'{"timeout": "the builder is gone"}')
        if "timeout" in reply:
            raise BuildTimeoutError(reply["timeout"])
        return decode(BuildResult, reply)


class _HungUp:
    """A :class:`Stop` for what is built for the other end of a channel: set once nobody is there."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def is_set(self) -> bool:
        """Whether the other end, or ours, has hung up; any number of threads may ask."""
        look = select.poll()
        look.register(self._end, select.POLLRDHUP)
        return bool(look.poll(0))


class BuildServer:
    """Serves any number of channels, one thread each.

    A build ends when the process that asked for it hangs up, whether it gave up, was stopped or died.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._serving: dict[threading.Thread, socket.socket] = {}

    def open_channel(self) -> socket.socket:
        """A connected socket for one child: pass its descriptor on, then close it here."""
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=self._serve, args=(ours,), daemon=True, name="build-channel")
        self._serving[thread] = ours
        thread.start()
        return theirs

    def close(self) -> None:
        """Hang up and wait until the compilers of all builds under way have ended, a short while at most."""
        serving = dict(self._serving)
        for end in serving.values():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                end.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _CLOSE_S
        for thread in serving:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _serve(self, end: socket.socket) -> None:
        try:
            with end, end.makefile("rb") as stream:
                while line := stream.readline(_LINE_LIMIT):
                    if not self._answer(line, end):
                        return
        finally:
            self._serving.pop(threading.current_thread(), None)

    def _answer(self, line: bytes, end: socket.socket) -> bool:
        """Answer one request; False when the other side is gone."""
        try:
            reply = encode(self._builder.build(decode(BuildRequest, json.loads(line)), _HungUp(end)))
        except (BadInputError, ValueError) as problem:
            reply = encode(BuildResult(library="", route="refused", log=str(problem)))
        except BuildTimeoutError as problem:
            reply = {"timeout": str(problem)}
        try:
            end.sendall(json.dumps(reply).encode() + b"\n")
        except OSError:
            return False
        return True


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


class CandidateBuildError(RuntimeError):
    """The candidate's extension does not build; the message holds the compilers' output."""


class Interception:
    """What was built in this process, for the report; returned by :func:`install`."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.results: list[BuildResult] = []

    def library(self, request: BuildRequest) -> BuildResult:
        """Build and remember; raises :class:`CandidateBuildError` when there is no library."""
        result = self._builder.build(request)
        self.results.append(result)
        if not result.library:
            raise CandidateBuildError(f"Error building extension '{request.name}': {result.log}")
        return result


def install(builder: Builder) -> Interception:
    """Replace the compile step of ``torch.utils.cpp_extension`` for the rest of this process."""
    from torch.utils import cpp_extension

    interception = Interception(builder)
    original: Callable[..., Any] = cpp_extension._jit_compile
    load: Callable[..., Any] = cpp_extension._import_module_from_library
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_and_load(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        if call.get("is_standalone") or call.get("with_sycl"):
            return original(*args, **kwargs)
        request = request_of(call)
        result = interception.library(request)
        try:
            return _load(load, request, result, call["is_python_module"])
        except ImportError:
            if result.route == "stock":
                raise
        result = interception.library(replace(request, fast=False))
        return _load(load, request, result, call["is_python_module"])

    cpp_extension._jit_compile = compile_and_load
    return interception


def request_of(call: dict[str, Any]) -> BuildRequest:
    """The build request of the arguments of ``torch.utils.cpp_extension._jit_compile``.

    Raises:
        CandidateBuildError: names or flags that no builder accepts.
    """
    try:
        sources = [Path(path) for path in _strings(call["sources"])]
        with_cuda = call["with_cuda"]
        if with_cuda is None:
            with_cuda = any(path.suffix in (".cu", ".cuh") for path in sources)
        return BuildRequest(
            name=call["name"],
            files=tuple(_files(sources, [Path(path) for path in _strings(call["extra_include_paths"])])),
            cflags=_strings(call["extra_cflags"]),
            cuda_cflags=_strings(call["extra_cuda_cflags"]),
            ldflags=_strings(call["extra_ldflags"]),
            include_paths=_strings(call["extra_include_paths"]),
            with_cuda=bool(with_cuda),
        )
    except ValueError as problem:
        raise CandidateBuildError(f"Error building extension {call['name']!r}: {problem}") from problem


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (str(value),) if isinstance(value, str) else tuple(str(item) for item in value)


def _files(sources: list[Path], include_paths: list[Path]) -> list[SourceFile]:
    """The sources under their file names, and the headers they include by quotes, recursively."""
    files: dict[str, SourceFile] = {}
    headers: list[tuple[str, Path]] = []
    for path in sources:
        text = path.read_text(encoding="utf-8")
        files[path.name] = SourceFile(name=path.name, text=text)
        headers += _included(text, [path.parent, *include_paths])
    while headers:
        name, path = headers.pop()
        if name not in files:
            text = path.read_text(encoding="utf-8")
            files[name] = SourceFile(name=name, text=text, compile=False)
            headers += _included(text, [path.parent, *include_paths])
    return list(files.values())


def _included(text: str, folders: list[Path]) -> list[tuple[str, Path]]:
    found = []
    for name in _INCLUDE.findall(text):
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found.append((name, path))
    return found


def _load(load: Callable[..., Any], request: BuildRequest, result: BuildResult, is_python_module: bool) -> Any:
    return load(request.name, str(Path(result.library).parent), is_python_module)
