"""A private two-way channel between two processes: framed JSON with descriptors attached."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = 8
_FRAME_LIMIT = 64 << 20
_MAX_FDS = 16


class ChannelClosedError(RuntimeError):
    """The other side is gone or sent something that is no frame."""


class ChannelTimeoutError(RuntimeError):
    """The other side did not answer in time."""


class Channel:
    """One end; owns its socket. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """The descriptor, for passing it on and for select."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def shutdown(self) -> None:
        """Hang up both ways, also for a thread that waits in :meth:`receive`."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message; descriptors are duplicated by the kernel.

        Raises:
            ChannelClosedError: nobody listens any more.
        """
        payload = json.dumps(message).encode()
        header = len(payload).to_bytes(_HEADER, "big")
        try:
            self._socket.settimeout(None)
            if fds:
                socket.send_fds(self._socket, [header], list(fds))
            else:
                self._socket.sendall(header)
            self._socket.sendall(payload)
        except OSError as problem:
            raise ChannelClosedError(str(problem)) from problem

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Wait for one message; the caller owns the descriptors that came with it.

        Raises:
            ChannelTimeoutError: nothing within ``timeout_s``.
            ChannelClosedError: end of stream, or a frame that is no JSON object.
        """
        self._socket.settimeout(timeout_s)
        fds: list[int] = []
        try:
            header, fds, _, _ = socket.recv_fds(self._socket, _HEADER, _MAX_FDS)
            header += self._exactly(_HEADER - len(header)) if header else b""
            size = int.from_bytes(header, "big")
            if len(header) < _HEADER or size > _FRAME_LIMIT:
                raise ChannelClosedError("end of stream" if not header else "frame too large")
            message = json.loads(self._exactly(size))
        except (TimeoutError, ChannelClosedError, OSError, ValueError, RecursionError) as problem:
            for fd in fds:
                os.close(fd)
            if isinstance(problem, TimeoutError):
                raise ChannelTimeoutError(f"no answer within {timeout_s} s") from problem
            raise ChannelClosedError(str(problem)) from problem
        if not isinstance(message, dict):
            raise ChannelClosedError("frame is no object")
        return message, fds

    def _exactly(self, size: int) -> bytes:
        chunks = []
        while size > 0:
            chunk = self._socket.recv(min(size, 1 << 20))
            if not chunk:
                raise ChannelClosedError("end of stream")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)


def channel_pair() -> tuple[Channel, socket.socket]:
    """Our end and a socket for the other process; close the latter here once it was passed on."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs
