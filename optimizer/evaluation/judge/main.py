"""A judge's life: one job after the other, one verdict each, and a clean slate between them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import BadTaskError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.gate import DeviceGate, Gate, OpenGate, device_alone
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.judge.cell_client import Cell
from optimizer.evaluation.judge.evaluation import Evaluation
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.judge.slate import Slate
from optimizer.evaluation.process.channel import Channel, ChannelClosedError
from optimizer.evaluation.process.transport import sender_for
from optimizer.evaluation.sandbox.devices import show_device

_OUR_SHARE = 0.1
"""Of a device's memory: a judge that takes more may be why a candidate found too little."""


def run(spec: dict[str, Any], fds: list[int]) -> None:
    """Judge jobs until the worker hangs up, or until something of a job can not be removed.

    Args:
        spec: ``backend`` and ``device`` (identity).
        fds: the worker's channel.
    """
    if spec["backend"] == "cuda":
        show_device(spec["device"])
    worker, slate = Channel(socket.socket(fileno=fds[0])), Slate(spec["backend"])
    clean = True
    with contextlib.suppress(ChannelClosedError):
        while clean:
            clean = _serve(worker, slate)
            worker.send({"clean": clean})


def _serve(worker: Channel, slate: Slate) -> bool:
    """Judge the next job; False when this process had better not judge another one.

    A request has ``job`` (encoded), ``scratch``, ``folder`` (ceilings), ``cell`` (``pid``, ``started``),
    ``device_name``, ``device_key`` (names its locks) and ``alone`` (hold the device from the first to the last
    moment); the cell's channel comes with it. Once the worker has the measurement it ends the cells and says so, and
    only then the device is left: what a candidate still does there disturbs nobody who times.
    """
    request, received = worker.receive()
    job = decode(EvaluationJob, request["job"])

    def waiting(waits: bool) -> None:
        worker.send({"waits": waits})

    gate = _gate(request, job, waiting)
    with contextlib.ExitStack() as stack:
        if request["alone"]:
            stack.enter_context(device_alone(request["device_key"], waiting))
        stack.callback(gate.close)
        gate.enter()
        start = time.monotonic() - gate.waited_s
        slate.take()
        message = _judged(request, job, received[0], worker, gate, start)
        worker.send(message)
        worker.receive()
        return slate.wipe(job) and message["measurement"]["outcome"] != Outcome.INFRA_ERROR.value


def _judged(
    request: dict[str, Any], job: EvaluationJob, cell_fd: int, worker: Channel, gate: Gate, start: float
) -> dict[str, Any]:
    """The verdict as a message; nothing of the evaluation is left when this returns."""

    def another_cell() -> Cell:
        worker.send({"want": "cell"})
        reply, received = worker.receive()
        return _cell(received[0], job, reply)

    evaluation = Evaluation(
        job,
        _cell(cell_fd, job, request["cell"]),
        another_cell,
        scratch=Path(request["scratch"]),
        folder=Path(request["folder"]),
        gate=gate,
    )
    fields, gone = _verdict(evaluation)
    for cell in evaluation.cells:
        cell.close()
    fields["findings"] = (*evaluation.findings, *fields.get("findings", ()))
    measurement = Measurement(
        device=request["device_name"],
        gpu_s=time.monotonic() - start - gate.waited_s,
        notes=tuple(evaluation.notes),
        checks=tuple(evaluation.checks),
        **fields,
    )
    seconds = {**evaluation.watch.seconds, "waiting": gate.waited_s}
    return {"measurement": encode(measurement), "gone": gone, "seconds": seconds}


def _gate(request: dict[str, Any], job: EvaluationJob, waiting: Callable[[bool], None]) -> Gate:
    """On a CPU the worker holds the machine for the whole evaluation; on a CUDA device others load meanwhile."""
    if job.backend == "cpu" or request["alone"]:
        return OpenGate()
    return DeviceGate(request["device_key"], waiting)


def _verdict(evaluation: Evaluation) -> tuple[dict[str, Any], bool]:
    """Fields of the measurement, and whether the candidate's process ended by itself."""
    import torch

    try:
        return evaluation.run(), False
    except Failure as failure:
        if _no_room(failure, evaluation.backend):
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
        return {"outcome": Outcome.INFRA_ERROR, "stage": "task", "error": str(problem)}, False
    except torch.OutOfMemoryError as problem:
        error = f"the reference does not fit the device beside the candidate, {_held()}: {problem}"
        return {"outcome": Outcome.INFRA_ERROR, "stage": "correctness", "error": error}, False


def _no_room(failure: Failure, backend: str) -> bool:
    """Whether a candidate ran out of a device's memory of which the judge itself has taken a good part."""
    if backend != "cuda" or failure.outcome is not Outcome.RUNTIME_ERROR or "out of memory" not in failure.reason:
        return False
    import torch

    return torch.cuda.max_memory_reserved() > torch.cuda.get_device_properties(0).total_memory * _OUR_SHARE


def _held() -> str:
    """What the judge needed so far, for people who choose a device."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    return f"which took up to {torch.cuda.max_memory_reserved() / 2**30:.1f} of {total / 2**30:.1f} GiB"


def _cell(fd: int, job: EvaluationJob, known: dict[str, Any]) -> Cell:
    return Cell(
        Channel(socket.socket(fileno=fd)),
        job.settings.run_timeout_s,
        known["pid"],
        sender=sender_for(job.backend),
        is_started=known["started"],
    )
