"""What a task's model gives in fp64: whole where that fits the device, in slices of the batch where it does not.

Where neither is possible the output in the task's own precision stands in, with its loss as far as it can be measured.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.sandbox.torch_state import give_back
from optimizer.evaluation.sandbox.values import join, map_tensors, nbytes, split

_EXACT_SIZE = 8
_MARGIN_BYTES = 1 << 30
_PROOF_ROWS = 2
_PROOF_ERROR = {"strict": 2e-5, "tf32": 2e-3}
"""Of the output's RMS: what other kernels for another batch size lose in fp32, and far below what a statistic of the
whole batch moves."""
_MOST_SLICES = 64
_SAMPLED = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """What the task's own precision loses where it was measured: RMS and largest error, in the output's unit."""

    rms: float
    largest: float

    def times(self, factor: float) -> Loss:
        """The loss of an output so many times as large."""
        return Loss(rms=self.rms * factor, largest=self.largest * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """fp64 outputs; or those in the task's own precision, with the ``losses`` known of them (None: not known)."""

    tensors: list[Any]
    losses: list[Loss | None] | None = None
    note: str = ""


class _OutOfRoomError(Exception):
    """The estimate was too small: libraries take workspaces, and others may have come to the device."""


class Oracle:
    """The fp64 answers of one task.

    Args:
        device: ``cpu`` or ``cuda``.
        room: bytes that may be taken on the device now.
        tf32: whether this process allows TF32.
    """

    def __init__(self, device: str, room: Callable[[], int] | None = None, *, tf32: bool = False) -> None:
        self._device = device
        self._proof_error = _PROOF_ERROR["tf32" if tf32 else "strict"]
        self._room = room or (lambda: free_bytes(device))
        self._proven: dict[tuple[tuple[int, ...], ...], tuple[int, ...] | None] = {}

    def exact(self, model: Any, inputs: list[Any], native: list[Any], intermediates: int) -> Exact | None:
        """The outputs in fp64; None when the model insists on its own precision.

        Args:
            native: the outputs in the task's own precision.
            intermediates: bytes that the model took for them beside inputs, parameters and outputs.
        """
        give_back(self._device)
        tensors = split(inputs)[1]
        widening = max(
            (_EXACT_SIZE // each.element_size() for each in (*tensors, *native) if each.is_floating_point()), default=1
        )
        outputs = widening * nbytes(native)
        working = widening * (nbytes(tensors) + intermediates) + outputs
        room = self._room() - widening * nbytes(model.parameters()) - _MARGIN_BYTES
        if working <= room:
            with contextlib.suppress(_OutOfRoomError):
                return self._whole(model, inputs)
            give_back(self._device)
        batched = self.batched(model, inputs, native)
        if batched is None:
            return Exact(tensors=native, losses=[None] * len(native), note=_NOT_MEASURED)
        try:
            if outputs < room:
                count = max(math.ceil(working / max(room - outputs, 1)), 2)
                return _sliced(model, inputs, native, batched, min(count, len(native[0])))
            return _sampled(model, inputs, native, batched)
        except (RuntimeError, TypeError, NotImplementedError) as problem:
            if _is_out_of_memory(problem):
                raise
            return None

    def batched(self, model: Any, inputs: list[Any], native: list[Any]) -> tuple[int, ...] | None:
        """Which input tensors have the batch in front; None where slices of it do not give slices of the output."""
        tensors = split(inputs)[1]
        key = tuple(tuple(tensor.shape) for tensor in (*tensors, *native))
        if key not in self._proven:
            choices, error = _choices(tensors, native), self._proof_error
            self._proven[key] = next((which for which in choices if _holds(model, inputs, native, which, error)), None)
        return self._proven[key]

    def _whole(self, model: Any, inputs: list[Any]) -> Exact | None:
        try:
            return Exact(tensors=split(in_fp64(model)(*doubled(inputs)))[1])
        except (RuntimeError, TypeError, NotImplementedError) as problem:
            if _is_out_of_memory(problem):
                raise _OutOfRoomError from None
            return None


def _sliced(model: Any, inputs: list[Any], native: list[Any], batched: tuple[int, ...], count: int) -> Exact:
    import torch

    exact = [torch.empty_like(tensor, dtype=_exact_type(tensor)) for tensor in native]
    for place, parts in _fp64_slices(model, inputs, batched, _places(len(native[0]), count)):
        for whole, part in zip(exact, parts, strict=True):
            whole[place].copy_(part)
    return Exact(tensors=exact, note=f"float64 reference in {count} slices of the batch")


def _sampled(model: Any, inputs: list[Any], native: list[Any], batched: tuple[int, ...]) -> Exact:
    places = _places(len(native[0]), min(_MOST_SLICES, len(native[0])))
    chosen = [places[0], places[len(places) // 2], places[-1]][:_SAMPLED]
    errors: list[list[tuple[float, float, int]]] = [[] for _ in native]
    for place, parts in _fp64_slices(model, inputs, batched, chosen):
        for found, whole, part in zip(errors, native, parts, strict=True):
            error = (whole[place].double() - part.double()).abs()
            found.append((float(error.square().sum()), float(error.max()), error.numel()))
    losses: list[Loss | None] = [
        Loss(
            rms=math.sqrt(sum(each[0] for each in found) / max(sum(each[2] for each in found), 1)),
            largest=max(each[1] for each in found),
        )
        for found in errors
    ]
    return Exact(tensors=native, losses=losses, note=_SAMPLED_NOTE)


_NOT_MEASURED = "float64 reference does not fit the device: compared with the output in the task's own precision"
_SAMPLED_NOTE = (
    "float64 reference does not fit the device: compared with the output in the task's own precision, "
    "whose loss was measured on slices of the batch"
)


def in_fp64(model: Any) -> Any:
    """A copy of a model with parameters and buffers in fp64."""
    import torch

    parameters = {
        id(value): torch.nn.Parameter(value.detach().double() if value.is_floating_point() else value, False)
        for value in model.parameters()
    }
    return copy.deepcopy(model, parameters).double()


def with_own_state(model: Any) -> Any:
    """A copy of a model that shares its parameters: running it leaves the buffers of the original alone."""
    return copy.deepcopy(model, {id(value): value for value in model.parameters()})


def doubled(inputs: list[Any]) -> list[Any]:
    """Copies, floating-point ones in fp64."""
    result: list[Any] = map_tensors(inputs, lambda tensor: tensor.to(_exact_type(tensor), copy=True))
    return result


def rms(tensor: Any) -> float:
    """Root of the mean square; 0 for a tensor without elements or of whole numbers."""
    import torch

    if not tensor.numel() or not tensor.is_floating_point():
        return 0.0
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) / math.sqrt(tensor.numel())


def free_bytes(device: str) -> int:
    """What this process may still take on its device; no limit on a CPU."""
    if device != "cuda":
        return 1 << 60
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free) + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def _exact_type(tensor: Any) -> Any:
    import torch

    return torch.float64 if tensor.dtype.is_floating_point else tensor.dtype


def _is_out_of_memory(problem: Exception) -> bool:
    import torch

    return isinstance(problem, torch.OutOfMemoryError)


def _choices(tensors: Sequence[Any], native: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Sets of inputs that may have the batch in front, the likeliest first."""
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in native}
    if len(sizes) != 1 or (size := sizes.pop()) < 2 * _PROOF_ROWS:
        return
    fitting = tuple(index for index, tensor in enumerate(tensors) if tensor.ndim and tensor.shape[0] == size)
    if fitting:
        yield fitting
    if len(fitting) > 1:
        yield from ((index,) for index in fitting)


def _holds(model: Any, inputs: list[Any], native: list[Any], which: tuple[int, ...], error: float) -> bool:
    """Whether the model's output on slices of the batch, the ends among them, are slices of its output."""
    last = len(native[0]) - _PROOF_ROWS
    for start in (0, last // 2, last):
        place = slice(start, start + _PROOF_ROWS)
        try:
            parts = split(with_own_state(model)(*_cut(inputs, which, place)))[1]
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError):
            return False
        if len(parts) != len(native) or not all(
            _alike(part, whole[place], error) for part, whole in zip(parts, native, strict=True)
        ):
            return False
    return True


def _alike(part: Any, whole: Any, allowed: float) -> bool:
    import torch

    if part.shape != whole.shape or part.dtype != whole.dtype:
        return False
    if not part.dtype.is_floating_point:
        return torch.equal(part, whole)
    if torch.finfo(part.dtype).eps > _PROOF_ERROR["strict"]:  # half types hide a statistic of the batch
        return False
    error = (part.double() - whole.double()).square().mean().sqrt()
    return bool(error <= allowed * whole.double().square().mean().sqrt())


def _cut(inputs: list[Any], which: tuple[int, ...], place: slice) -> list[Any]:
    template, tensors = split(inputs)
    cut = [tensor[place].clone() if index in which else tensor for index, tensor in enumerate(tensors)]
    result: list[Any] = join(template, cut)
    return result


def _places(rows: int, count: int) -> list[slice]:
    step = math.ceil(rows / count)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _fp64_slices(
    model: Any, inputs: list[Any], which: tuple[int, ...], places: Sequence[slice]
) -> Iterator[tuple[slice, list[Any]]]:
    wide = in_fp64(model)
    for place in places:
        yield place, split(with_own_state(wide)(*doubled(_cut(inputs, which, place))))[1]
