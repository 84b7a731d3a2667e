"""A judge's life: one job, one verdict."""

from __future__ import annotations

import contextlib
import os
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
from optimizer.evaluation.process.channel import Channel
from optimizer.evaluation.process.transport import sender_for


def run(spec: dict[str, Any], fds: list[int]) -> None:
    """Judge one job and send its measurement.

    Args:
        spec: ``job`` (encoded), ``scratch``, ``folder`` (ceilings), ``device`` (index), ``cell_pid``, ``device_name``,
            ``device_key`` (names its locks), ``alone`` (hold the device from the first to the last moment).
        fds: the worker's channel and the cell's channel.
    """
    job = decode(EvaluationJob, spec["job"])
    if job.backend == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(spec["device"])
    worker = Channel(socket.socket(fileno=fds[0]))

    def another_cell() -> Cell:
        worker.send({"want": "cell"})
        reply, received = worker.receive()
        return _cell(received[0], job, reply["pid"])

    def waiting(waits: bool) -> None:
        worker.send({"waits": waits})

    gate = _gate(spec, waiting)
    evaluation = Evaluation(
        job,
        _cell(fds[1], job, spec["cell_pid"]),
        another_cell,
        scratch=Path(spec["scratch"]),
        folder=Path(spec["folder"]),
        gate=gate,
    )
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        if spec["alone"]:
            stack.enter_context(device_alone(spec["device_key"], waiting))
            start = time.monotonic()
        gate.enter()
        stack.callback(gate.leave)
        fields, gone = _verdict(evaluation)
    fields["findings"] = (*evaluation.findings, *fields.get("findings", ()))
    measurement = Measurement(
        device=spec["device_name"],
        gpu_s=time.monotonic() - start - gate.waited_s,
        notes=tuple(evaluation.notes),
        checks=tuple(evaluation.checks),
        **fields,
    )
    seconds = {**evaluation.watch.seconds, "waiting": gate.waited_s}
    worker.send({"measurement": encode(measurement), "gone": gone, "seconds": seconds})


def _gate(spec: dict[str, Any], waiting: Callable[[bool], None]) -> Gate:
    """On a CPU the worker holds the machine for the whole evaluation; on a CUDA device others load meanwhile."""
    if spec["job"]["backend"] == "cpu" or spec["alone"]:
        return OpenGate()
    return DeviceGate(spec["device_key"], waiting)


def _verdict(evaluation: Evaluation) -> tuple[dict[str, Any], bool]:
    """Fields of the measurement, and whether the candidate's process ended by itself."""
    import torch

    try:
        return evaluation.run(), False
    except Failure as failure:
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
        error = f"the reference does not fit the device beside the candidate: {problem}"
        return {"outcome": Outcome.INFRA_ERROR, "stage": "correctness", "error": error}, False


def _cell(fd: int, job: EvaluationJob, pid: int) -> Cell:
    channel = Channel(socket.socket(fileno=fd))
    return Cell(channel, job.settings.run_timeout_s, pid, sender=sender_for(job.backend))
