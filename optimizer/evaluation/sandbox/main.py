"""The life of a candidate's process: shut the doors, then serve the verifier's requests until it hangs up."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from pathlib import Path
from typing import Any

from artifacts.first_error import lead_with_first_error
from optimizer.evaluation.build.command import BuildTimeoutError
from optimizer.evaluation.build.remote import CandidateBuildError, RemoteBuilder, install
from optimizer.evaluation.guard.static import ROUTE
from optimizer.evaluation.sandbox.channel import Channel, ChannelClosedError
from optimizer.evaluation.sandbox.enter import Policy, enter, hide_other_devices, show_device
from optimizer.evaluation.sandbox.own_kernels import OwnKernels
from optimizer.evaluation.sandbox.session import CandidateError, Session
from optimizer.evaluation.sandbox.transport import NotSharedError

_ERROR_LIMIT = 4000
_BUILDER_NICE = 10


def run(spec: dict[str, Any], fds: list[int]) -> None:
    """Serve one candidate.

    Args:
        spec: ``backend``, ``device`` (identity; None hides the device), ``scratch`` (directory), ``readable`` paths.
        fds: the verifier's channel and the builder's channel.
    """
    channel, builder = Channel(socket.socket(fileno=fds[0])), RemoteBuilder(socket.socket(fileno=fds[1]))
    settle(spec)
    kernels = OwnKernels()
    interception = install(builder)
    on_device = spec["backend"] == "cuda" and spec["device"] is not None
    with contextlib.suppress(ChannelClosedError):
        layers = enter(_policy(spec, admission(channel, on_device)))
        session = Session(backend="cuda" if on_device else "cpu", scratch=Path(spec["scratch"]), kernels=kernels)
        while True:
            message, received = channel.receive()
            reply = answer(session, message, received)
            if interception.results and interception.results[-1].route == ROUTE:
                reply = {"error": "rejected", "text": interception.results[-1].log, "final": True}
            reply["layers"] = layers
            reply["build_notes"] = [note for result in interception.results for note in result.notes()]
            channel.send(reply)
            for fd in received:
                os.close(fd)


def admission(channel: Channel, on_device: bool) -> dict[str, Any]:
    """Wait for what the candidate may do and, on a CUDA device, for leave to start it; return the former.

    A device may be started long before anybody knows which candidate will use it.
    """
    waiting = {"start", "policy"} if on_device else {"policy"}
    policy: dict[str, Any] = {}
    while waiting:
        message, _ = channel.receive()
        waiting.discard(str(message["do"]))
        if message["do"] == "start":
            channel.send(_started())
        else:
            policy = message
    return policy


def _started() -> dict[str, Any]:
    try:
        start_device()
    except RuntimeError as problem:
        return {"error": "infra_error", "text": f"the device does not start: {problem}"}
    return {"started": True}


def start_device() -> None:
    """Create the CUDA context, before the doors close: the driver opens files for it. Load what every call needs."""
    import torch

    first = torch.zeros(2, device="cuda")
    first.fill_(1.0)
    first.copy_(torch.ones(2))
    torch.cuda.synchronize()


def _policy(spec: dict[str, Any], admitted: dict[str, Any]) -> Policy:
    memory = None if spec["backend"] == "cuda" else int(admitted["memory_gib"] * 2**30)
    return Policy(
        scratch=spec["scratch"],
        readable=tuple(spec["readable"]),
        cpu_s=admitted["cpu_s"],
        memory_bytes=memory,
        allow_programs=admitted["programs"],
    )


def settle(spec: dict[str, Any]) -> None:
    """Give the process its own small world: directory, environment, limits."""
    scratch = spec["scratch"]
    if spec["backend"] == "cuda" and spec["device"] is None:
        os.nice(_BUILDER_NICE)  # it only builds: the host's cores belong to those who time
    os.chdir(scratch)
    names = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "NUMBA_NUM_THREADS")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update(
        HOME=scratch,
        TMPDIR=scratch,
        TORCH_EXTENSIONS_DIR=os.path.join(scratch, "extensions"),  # noqa: PTH118 - an environment value
        TRITON_CACHE_DIR=os.path.join(scratch, "triton"),  # noqa: PTH118
        CUDA_CACHE_DISABLE="1",
    )
    if spec["backend"] == "cuda":
        show_device(spec["device"])
        with contextlib.suppress(OSError):
            hide_other_devices(spec["device"] or "")


def answer(session: Session, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Run one request; whatever the candidate raises becomes a typed error reply.

    An error is ``final`` when a device in sight would not change it. Its text begins with the line that says most.
    """
    try:
        return session.handle(message, fds)
    except CandidateBuildError as problem:
        return {**_error("compile_error", lead_with_first_error(str(problem), session.source)), "final": True}
    except BuildTimeoutError as problem:
        return {**_error("timeout", f"building: {problem}"), "final": True}
    except CandidateError as problem:
        return _error(problem.kind, str(problem))
    except NotSharedError as problem:
        return _error("infra_error", str(problem))
    except (KeyboardInterrupt, SystemExit) as problem:
        return _error("runtime_error", f"the candidate ended its process: {problem!r}")
    except Exception as problem:  # noqa: BLE001 - anything may come out of a candidate
        kind = "compile_error" if message.get("do") == "load" else "runtime_error"
        text = lead_with_first_error(describe(problem), session.source)
        return {**_error(kind, text), "final": isinstance(problem, SyntaxError)}


def describe(problem: BaseException) -> str:
    """The exception with the candidate's own frames, without paths of this host."""
    frames = [
        frame for frame in traceback.extract_tb(problem.__traceback__) if "candidate" in Path(frame.filename).name
    ]
    where = "".join(f"\n  line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames)
    return f"{type(problem).__name__}: {problem}{where}"


def _error(kind: str, text: str) -> dict[str, Any]:
    if len(text) > _ERROR_LIMIT:
        half = _ERROR_LIMIT // 2
        text = f"{text[:half]}\n[…]\n{text[-half:]}"
    return {"error": kind, "text": text}
