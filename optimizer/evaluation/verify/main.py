"""A verifier's life: one job after the other, one verdict each, and a state reset between them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import linecache
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import BadTaskError
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.device_lock import DeviceLock, NoDeviceLock, SharedDeviceLock, exclusive_device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.sandbox.channel import Channel, ChannelClosedError
from optimizer.evaluation.sandbox.clock import give_freed_memory_back
from optimizer.evaluation.sandbox.enter import show_device
from optimizer.evaluation.sandbox.torch_state import GlobalState
from optimizer.evaluation.verify.evaluation import Evaluation
from optimizer.evaluation.verify.failure import TASK_STAGE, Failure
from optimizer.evaluation.verify.input_sets import under_each_setting
from optimizer.evaluation.verify.memory_budget import PEAK, Sizes
from optimizer.evaluation.verify.reference_alone import ReferenceAlone
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.verify.task_module import MODULE_NAME

_OUR_SHARE = 0.1
"""Of a device's memory, where a task's sizes are not known: a verifier that takes more may be why a candidate found
too little."""


def run(spec: dict[str, Any], fds: list[int]) -> None:
    """Verify jobs until the worker hangs up, or until something of a job can not be removed.

    Args:
        spec: ``backend`` and ``device`` (identity).
        fds: the worker's channel.
    """
    if spec["backend"] == "cuda":
        show_device(spec["device"])
    worker, state_reset = Channel(socket.socket(fileno=fds[0])), StateReset(spec["backend"])
    clean = True
    with contextlib.suppress(ChannelClosedError):
        while clean:
            clean = _serve(worker, state_reset)
            worker.send({"clean": clean})


def _serve(worker: Channel, state_reset: StateReset) -> bool:
    """Verify the next job; False when this process had better not verify another one.

    A request has ``job`` (encoded), ``scratch``, ``folder`` (ceilings), ``sandbox`` (``pid``, ``started``), ``sizes``
    (of the task, or None), ``guards`` (the run-time guard), ``device_name``, ``device_key`` (names its locks) and
    ``alone`` (hold the device from the first to the last moment); the sandbox's channel comes with it. Once the worker
    has the measurement it ends the sandboxes and says so, and only then the device is left: what a candidate still does
    there disturbs no timing.
    """
    request, received = worker.receive()
    job = decode(EvaluationJob, request["job"])

    def waiting(waits: bool) -> None:
        worker.send({"waits": waits})

    device_lock = _device_lock(request, job, waiting)
    with contextlib.ExitStack() as stack:
        if request["alone"]:
            stack.enter_context(exclusive_device(request["device_key"], waiting))
        stack.callback(device_lock.close)
        device_lock.enter()
        start = time.monotonic() - device_lock.waited_s
        state_reset.take()
        message = _verified(request, job, received[0], worker, device_lock, start)
        worker.send(message)
        worker.receive()
        return state_reset.wipe() and message["measurement"]["outcome"] != Outcome.INFRA_ERROR.value


def _verified(
    request: dict[str, Any], job: EvaluationJob, sandbox_fd: int, worker: Channel, device_lock: DeviceLock, start: float
) -> dict[str, Any]:
    """The verdict as a message; nothing of the evaluation is left when this returns."""
    seconds: Counter[str] = Counter()
    waiting = [_sandbox(sandbox_fd, job, request["sandbox"])]
    gone = False

    def another_sandbox() -> SandboxClient:
        worker.send({"want": "sandbox"})
        reply, received = worker.receive()
        return _sandbox(received[0], job, reply)

    def evaluated(one: EvaluationJob) -> Measurement:
        """Under one input setting, in sandboxes of its own and with the time of a whole job."""
        nonlocal gone
        worker.send({"begins": True})
        kind = ReferenceAlone if job.reference_only else Evaluation
        evaluation = kind(
            one,
            waiting.pop() if waiting else another_sandbox(),
            another_sandbox,
            scratch=Path(request["scratch"]),
            folder=Path(request["folder"]),
            device_lock=device_lock,
            sizes=Sizes(**request["sizes"]) if request["sizes"] else None,
            guards=request["guards"],
        )
        PEAK.start()
        fields, gone = _verdict(evaluation)
        for sandbox in evaluation.sandboxes.started:
            sandbox.close()
        record = evaluation.record
        seconds.update(record.seconds)
        fields["findings"] = (*record.findings, *fields.get("findings", ()))
        notes, checks = tuple(record.notes), tuple(record.checks)
        peaks = _peaks(evaluation)
        known = {"device": request["device_name"], "precision": evaluation.precision, "peak_bytes": peaks}
        return Measurement(**known, notes=notes, checks=checks, **fields)

    try:
        measurement = under_each_setting(job, Path(request["scratch"]), evaluated)
    except BadTaskError as problem:
        outcome = Outcome.RUNTIME_ERROR if job.reference_only else Outcome.INFRA_ERROR
        measurement = Measurement(outcome=outcome, stage=TASK_STAGE, device=request["device_name"], error=problem.what)
    measurement = dataclasses.replace(measurement, gpu_s=time.monotonic() - start - device_lock.waited_s)
    return {
        "measurement": encode(measurement),
        "gone": gone,
        "seconds": {**seconds, "waiting": device_lock.waited_s},
    }


def _peaks(evaluation: Evaluation) -> dict[str, int]:
    if evaluation.backend == "cpu":
        return {}
    return {"verifier": PEAK.bytes(), "sandbox": max(sandbox.peak_bytes for sandbox in evaluation.sandboxes.started)}


def _device_lock(request: dict[str, Any], job: EvaluationJob, waiting: Callable[[bool], None]) -> DeviceLock:
    """On a CPU the worker holds the machine for the whole evaluation; on a CUDA device others load meanwhile."""
    if job.backend == "cpu" or request["alone"]:
        return NoDeviceLock()
    return SharedDeviceLock(request["device_key"], waiting)


def _verdict(evaluation: Evaluation) -> tuple[dict[str, Any], bool]:
    """Fields of the measurement, and whether the candidate's process ended by itself."""
    import torch

    try:
        return evaluation.run(), False
    except Failure as failure:
        if _no_room(failure, evaluation):
            error = f"no room for the candidate beside the reference, {_held()}: {failure.reason}"
            return {"outcome": Outcome.INFRA_ERROR, "stage": failure.stage, "error": error}, False
        fields = {
            "outcome": failure.outcome,
            "stage": failure.stage,
            "error": failure.reason or failure.outcome.value,
            "findings": failure.findings,
        }
        return fields, failure.gone
    except BadTaskError as problem:
        return {"outcome": Outcome.INFRA_ERROR, "stage": TASK_STAGE, "error": str(problem)}, False
    except torch.OutOfMemoryError as problem:
        error = f"the reference does not fit the device beside the candidate, {_held()}: {problem}"
        return {"outcome": Outcome.INFRA_ERROR, "stage": "correctness", "error": error}, False


def _no_room(failure: Failure, evaluation: Evaluation) -> bool:
    """Whether a candidate ran out of a device's memory of which the verifier itself holds more than it should."""
    candidates = failure.outcome is Outcome.RUNTIME_ERROR and failure.stage != TASK_STAGE
    if evaluation.backend != "cuda" or not candidates or "out of memory" not in failure.reason:
        return False
    import torch

    share = torch.cuda.get_device_properties(0).total_memory * _OUR_SHARE
    if evaluation.sizes is not None:
        share = max(share, evaluation.sizes.beside_candidate())
    return torch.cuda.memory_reserved() > share


def _held() -> str:
    """What the verifier needed so far, for people who choose a device."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    return f"which took up to {PEAK.bytes() / 2**30:.1f} of {total / 2**30:.1f} GiB"


def _sandbox(fd: int, job: EvaluationJob, known: dict[str, Any]) -> SandboxClient:
    return SandboxClient(
        Channel(socket.socket(fileno=fd)),
        job.settings.run_timeout_s,
        known["pid"],
        backend=job.backend,
        is_started=known["started"],
        tf32=job.settings.tf32,
        dtype=job.settings.dtype,
    )


_MOST_JOBS = 100
"""Whatever may gather in a process does not gather for longer."""
_LEFT_BYTES = 16 << 20
_CACHED_SHARE = 64
"""Freed memory up to this part of a device is kept for the next job: asking the driver for it takes its lock."""
_COMPILER = "torch._dynamo"
"""Once it is loaded a process has compiled a baseline, which leaves processes, threads and patched functions."""


class StateReset:
    """One a process; make it in the verifier before its first job, and :meth:`take` when the device may be used.

    No candidate's code ever runs here. What one can leave in a verifier is memory and a broken device; what a task can
    leave is global state.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._state: GlobalState | None = None
        self._jobs = 0
        self._threads = threading.active_count()
        self._compiled = _COMPILER in sys.modules

    def take(self) -> None:
        """Remember the state, the first time; starts CUDA on a CUDA backend."""
        if self._state is None:
            self._state = GlobalState.take(self._backend)

    def wipe(self) -> bool:
        """Forget the last job; False when this process had better not verify another one."""
        self._jobs += 1
        compiled = not self._compiled and _COMPILER in sys.modules
        if self._state is None or self._jobs >= _MOST_JOBS or compiled:
            return False
        sys.modules.pop(MODULE_NAME, None)
        linecache.clearcache()
        gc.collect()
        give_freed_memory_back()
        with contextlib.suppress(RuntimeError):  # a broken device
            self._state.restore()
            return threading.active_count() <= self._threads and self._device_is_free()
        return False

    def _device_is_free(self) -> bool:
        """Whether nothing of the job is left on the device."""
        if self._backend != "cuda":
            return True
        import torch

        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // _CACHED_SHARE:
            torch.cuda.empty_cache()
        return torch.cuda.memory_allocated() <= _LEFT_BYTES
