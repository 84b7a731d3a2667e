"""The fork server: imports torch once, then gives each stage a fresh child in milliseconds."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

from optimizer.evaluation.guard.languages import PARTS
from optimizer.evaluation.sandbox.channel import Channel, ChannelClosedError

_PR_SET_PDEATHSIG = 1
_PRELOADED = (
    "torch",
    "optimizer.evaluation.sandbox.recording",
    "optimizer.evaluation.sandbox.main",
    "optimizer.evaluation.verify.main",
)


def preload() -> None:
    """Import what every child needs, and nothing that starts threads or a device.

    Whoever asks torch whether CUDA is there goes to the management library: asked through the driver's
    runtime, torch would refuse CUDA to every forked child.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    _import_numpy()
    _import_extension_module()
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in ("triton", *PARTS):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _import_extension_module() -> None:
    """Import torch's builder, which asks for CUDA only to log that there is none; asking NVML starts a thread."""
    import torch

    ask = torch.cuda.is_available
    torch.cuda.is_available = lambda: True
    try:
        importlib.import_module("torch.utils.cpp_extension")
    finally:
        torch.cuda.is_available = ask


def _import_numpy() -> None:
    """Import numpy, as torch will, with an OpenBLAS of one thread: Python 3.12 warns of forks beside other threads."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")
    del os.environ["OPENBLAS_NUM_THREADS"]


def run_entry(entry: str, spec: dict[str, Any], fds: list[int]) -> None:
    """Run a child's program by name: ``sandbox`` runs a candidate, ``verifier`` decides, ``sizes`` counts bytes."""
    if entry == "sandbox":
        from optimizer.evaluation.sandbox.main import run as run_sandbox

        run_sandbox(spec, fds)
    elif entry == "sizes":
        from optimizer.evaluation.verify.memory_budget import count

        count(spec, fds)
    else:
        from optimizer.evaluation.verify.main import run as run_verifier

        run_verifier(spec, fds)


class Server:
    """Forks on request and reports who ended how."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        self._wake, wake_end = socket.socketpair()
        self._wake.setblocking(False)
        wake_end.setblocking(False)
        self._wake_end = wake_end
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Work until the other side hangs up; then end all children."""
        selector = selectors.DefaultSelector()
        selector.register(self._control.fileno(), selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake in ready:
                    self._drain()
                self._reap()
                if self._control.fileno() in ready:
                    self._handle()
        except ChannelClosedError:
            signal.set_wakeup_fd(-1)
            for pid in self._children:
                _kill_group(pid)

    def _handle(self) -> None:
        message, fds = self._control.receive()
        try:
            if "kill" in message:
                pid = next((pid for pid, ticket in self._children.items() if ticket == message["kill"]), None)
                if pid is not None:
                    _kill_group(pid)
            else:
                self._spawn(message, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(message, fds)
        self._children[pid] = message["ticket"]
        self._control.send({"ticket": message["ticket"], "pid": pid})

    def _become(self, message: dict[str, Any], fds: list[int]) -> None:
        """The child's whole life; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            os.setsid()
            self._control.close()
            self._wake.close()
            self._wake_end.close()
            if not message["spec"].get("stderr"):
                _silence()
            run_entry(message["entry"], message["spec"], fds)
            status = 0
        except SystemExit:
            status = 3
        except BaseException:  # noqa: BLE001 - the traceback of a child must not reach the server's loop
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ticket = self._children.pop(pid, None)
            _kill_group(pid)
            if ticket is not None:
                self._control.send({"ticket": ticket, "status": os.waitstatus_to_exitcode(status)})

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def main() -> None:
    """Entry point: the control socket's descriptor is the only argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    preload()
    gc.collect()
    gc.freeze()  # what the imports made: no child need look at it, nor copy its pages, to collect its own
    with contextlib.suppress(ChannelClosedError):  # whoever started this was ended while it imported
        control.send({"ready": True})
        Server(control).serve()


if __name__ == "__main__":
    main()
