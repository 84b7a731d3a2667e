"""A builder at the other end of a socket: the process that runs a candidate asks, a trusted one compiles.

One JSON line a request and one a reply, no pickles, so nothing the candidate sends can run code.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from optimizer.evaluation.build.builder import Builder, BuildResult
from optimizer.evaluation.build.command import BuildTimeoutError, Stop
from optimizer.evaluation.build.request import BuildRequest

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
    """Serves any number of channels, one thread each; the builder bounds how many compile at a time.

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
