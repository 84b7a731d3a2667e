"""What an evaluation holds on a device, phase by phase, and what a task takes: the budget that admits it there.

With ``I`` inputs, ``O`` outputs, ``P`` parameters and ``M`` what the reference takes on the way, all in the task's own
precision, and fp64 twice as wide as fp32:

===============  =====================================  ==========================================
phase            verifier                               sandbox
===============  =====================================  ==========================================
call             P + I (+ O of the call before)         P + I + O + M, and what the candidate takes
answer           P + I + 2 O + O + 2 (P + I + M + O)    P
again            P + I + 2 O + O + P + I + M            P
time             P                                      P + 2 I + 2 O + M
time a baseline  P + 2 I + 2 O + M                      P
===============  =====================================  ==========================================

Each side gives back what it does not hold before the other side needs room. Where fp64 does not fit whole, it is
computed in slices of the batch (``oracle.py``). Inputs that are not large are held in several variants at once.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.evaluation.sandbox.channel import Channel
from optimizer.evaluation.sandbox.recording import PlainDispatchMode
from optimizer.evaluation.sandbox.torch_state import LARGE_SHARE
from optimizer.evaluation.sandbox.values import nbytes, tensors_in
from optimizer.evaluation.verify.task_module import load_task_module

_FP64 = 2
_VARIANTS = 3
_FIXED_BYTES = 3 << 29
"""Of two processes: flushed caches, workspaces of libraries, memory that torch keeps in reserve."""
CONTEXT_BYTES = 512 << 20
"""Of one process on a CUDA device, beside its tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of a task's inputs, outputs and parameters, and of what its reference takes on the way at most."""

    inputs: int
    outputs: int
    parameters: int
    intermediates: int

    def evaluation_bytes(self, device_bytes: int) -> int:
        """What an evaluation of this task should find free on a device of ``device_bytes``, contexts aside."""
        held = 2 * self.parameters + self.inputs + 3 * self.outputs
        wide = _FP64 * (self.parameters + self.inputs + self.intermediates + self.outputs)
        call = 2 * self.parameters + 2 * self.inputs + 3 * self.outputs + 2 * self.intermediates
        timed = 2 * self.parameters + 4 * self.inputs + 4 * self.outputs + self.intermediates
        if self.inputs <= device_bytes // LARGE_SHARE:
            timed += (_VARIANTS - 1) * 3 * self.inputs
            held += (_VARIANTS - 1) * (self.inputs + 3 * self.outputs)
        return max(held + wide, call, timed) + _FIXED_BYTES

    def beside_candidate(self) -> int:
        """What a verifier may hold while the candidate runs, without being to blame when that finds too little."""
        return self.parameters + self.inputs + 2 * self.outputs + _FIXED_BYTES


def count(spec: dict[str, Any], fds: list[int]) -> None:
    """Entry point of a process that sends the sizes of a task whose ``source`` is given, or nothing.

    Args:
        spec: ``source`` and ``scratch`` (directory).
        fds: the worker's channel.
    """
    channel = Channel(socket.socket(fileno=fds[0]))
    task = load_task_module(spec["source"], Path(spec["scratch"]))
    found = [sizes_of(lambda: task.model(*task.init_inputs()), inputs) for inputs in task.every_inputs()]
    channel.send({name: max(getattr(sizes, name) for sizes in found) for name in Sizes.__slots__})


def sizes_of(make_model: Callable[[], Any], make_inputs: Callable[[], Sequence[Any]]) -> Sizes:
    """The sizes of a task, counted on tensors without memory.

    Raises whatever the task raises there; a model that looks at values does.
    """
    import torch

    with torch.device("meta"), torch.no_grad():
        model, inputs = make_model(), list(make_inputs())
        given = {id(tensor.untyped_storage()): tensor for tensor in tensors_in(inputs)}
        with _LiveBytes() as live:
            output = model(*inputs)
        outputs = nbytes(tensors_in(output))
    parameters = nbytes([*model.parameters(), *model.buffers()])
    return Sizes(
        inputs=nbytes(given.values()),
        outputs=outputs,
        parameters=parameters,
        intermediates=max(live.most - outputs, 0),
    )


class _LiveBytes(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of results that are alive at once at most."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count what it makes."""
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for tensor in tensors_in(result):
                self._add(tensor)
        return result

    def _add(self, tensor: Any) -> None:
        self._now += int(tensor.nbytes)
        self.most = max(self.most, self._now)
        weakref.finalize(tensor, self._subtract, int(tensor.nbytes))

    def _subtract(self, size: int) -> None:
        self._now -= size


class PeakMemory:
    """The most device memory that this process has reserved since :meth:`start`, whatever is reset meanwhile."""

    def __init__(self) -> None:
        self._highest = 0

    def start(self) -> None:
        """Forget what was."""
        self._highest = 0
        _reset()

    def bytes(self) -> int:
        """The most so far; 0 without a device."""
        self._highest = max(self._highest, _reserved())
        return self._highest

    @contextmanager
    def inside(self) -> Iterator[Callable[[], int]]:
        """Gives a function that says how much more than before the block was allocated at most since it began."""
        self.bytes()
        before = _allocated()
        _reset()
        yield lambda: _most_allocated() - before


PEAK = PeakMemory()
"""Of this process."""


def _device() -> Any:
    """torch's account of this process's device; None before it was used."""
    import torch

    return torch.cuda if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


def _reset() -> None:
    if device := _device():
        device.reset_peak_memory_stats()


def _reserved() -> int:
    device = _device()
    return int(device.max_memory_reserved()) if device else 0


def _allocated() -> int:
    device = _device()
    return int(device.memory_allocated()) if device else 0


def _most_allocated() -> int:
    device = _device()
    return int(device.max_memory_allocated()) if device else 0
