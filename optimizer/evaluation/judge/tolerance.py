"""How far an output may be from the fp64 reference, and proof that this still tells right from wrong.

Three numbers bound the error: its root mean square (catches lowered precision everywhere), every
single element (catches a forgotten tail), and whatever the reference itself loses in the task's own
precision (so that ill-conditioned tasks do not fail honest kernels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_RMS = {"float64": 1e-10, "float32": 1.5e-4, "float16": 4e-3, "bfloat16": 3e-2}
"""Allowed RMS error over RMS output. TF32 or half inputs give 3e-4 in a float32 product."""
_ELEMENT = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Allowed error of one element over its own size and over the mean size."""
_NATIVE_FACTOR = 16.0
_CHUNK = 1 << 26
_ILL_CONDITIONED = {"float64": 1e-6, "float32": 1e-3, "float16": 5e-2, "bfloat16": 3e-1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Bounds for one output tensor: ``rms`` and ``absolute`` in the output's unit, ``relative`` per element."""

    rms: float
    absolute: float
    relative: float


def tolerance_for(exact: Any, native: Any) -> Tolerance | None:
    """Bounds from the exact (fp64) and the native output; None when the task is ill-conditioned here."""
    dtype = str(native.dtype).removeprefix("torch.")
    count = exact.numel()
    if not count:
        return Tolerance(rms=0.0, absolute=0.0, relative=0.0)
    mean = float(exact.mean())
    size = magnitude = variance = lost = largest = 0.0
    for _, right, value in _chunks(exact, native):
        error = (value.double() - right).abs()
        lost += float(error.square().sum())
        largest = max(largest, float(error.max()))
        size += float(right.square().sum())
        magnitude += float(right.abs().sum())
        variance += float((right - mean).square().sum())
    rms, spread, own = (math.sqrt(total / count) for total in (size, variance, lost))
    if own > _ILL_CONDITIONED[dtype] * rms:
        return None
    allowed = _RMS[dtype] * rms
    if count > 1 and spread > 0:
        allowed = min(allowed, 0.1 * spread)
    element = _ELEMENT[dtype]
    return Tolerance(
        rms=max(allowed, _NATIVE_FACTOR * own),
        absolute=element * magnitude / count + _NATIVE_FACTOR * largest,
        relative=element,
    )


def mismatch(output: Any, exact: Any, tolerance: Tolerance) -> str:
    """Say how ``output`` differs, empty when it does not."""
    count = exact.numel()
    if not count:
        return ""
    wrong, first, squares = 0, -1, 0.0
    for start, right, value in _chunks(exact, output):
        error = (value.double() - right).abs()
        bad = ~(error <= tolerance.absolute + tolerance.relative * right.abs())
        found = int(bad.sum())
        if found and first < 0:
            first = start + int(bad.nonzero()[0])
        wrong += found
        squares += float(error.square().sum())
    if wrong:
        return (
            f"{wrong} of {count} elements differ, the first at flat index {first}: "
            f"{float(output.reshape(-1)[first]):.6g} instead of {float(exact.reshape(-1)[first]):.6g}"
        )
    rms = math.sqrt(squares / count)
    if rms > tolerance.rms:
        scale = _rms(exact)
        return f"precision is too low: RMS error {rms / scale:.2e} of the output, {tolerance.rms / scale:.2e} allowed"
    return ""


def powerless_controls(exact: Any, tolerance: Tolerance) -> set[str]:
    """Trivial outputs that the bounds would accept: ``zeros``, ``mean``."""
    import torch

    values = {"zeros": 0.0, "mean": float(exact.mean())}
    if exact.numel() == 1:
        del values["mean"]
    flat = exact.reshape(-1)
    return {
        name
        for name, value in values.items()
        if not mismatch(torch.full((), value, dtype=exact.dtype, device=exact.device).expand_as(flat), flat, tolerance)
    }


def largest_error(output: Any, exact: Any) -> float:
    """Largest absolute error of an element; NaN when one is not a number."""
    return max((float((value.double() - right).abs().max()) for _, right, value in _chunks(exact, output)), default=0.0)


def is_finite(tensor: Any) -> bool:
    """Whether all elements are."""
    import torch

    return all(bool(torch.isfinite(part).all()) for _, part, _ in _chunks(tensor, tensor))


def _chunks(exact: Any, other: Any) -> Iterator[tuple[int, Any, Any]]:
    """Both flattened, in parts that leave room on a device that is full of the whole."""
    right, value = exact.reshape(-1), other.reshape(-1)
    for start in range(0, right.numel(), _CHUNK):
        yield start, right[start : start + _CHUNK], value[start : start + _CHUNK]


def _rms(exact: Any) -> float:
    return math.sqrt(sum(float(right.square().sum()) for _, right, _ in _chunks(exact, exact)) / exact.numel())
