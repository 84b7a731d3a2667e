"""How far an output may be from the fp64 reference, and one delivery of a candidate held against it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.verify.oracle import Loss, rms
from optimizer.evaluation.verify.reference import Answer

_CHUNK = 1 << 26


@dataclass(frozen=True, slots=True)
class _Limits:
    """What one kind of arithmetic may lose; ``benchmarks/precision.py`` measures what it does lose.

    Attributes:
        rms: allowed RMS error over RMS output; a tenth of the spread where the output hardly varies.
        sums: never less than this is allowed, however little the output varies: 2^18 float32 terms that are added one
            after the other lose 7e-6, operands cut off to TF32 lose 5e-4 of a product whose terms have one sign.
        element: allowed error of one element over its own size and over the mean size.
        native: how many times what the reference itself loses is allowed where that is more.
        ill_conditioned: loss of the reference, over RMS output, from which nothing can be said.
    """

    rms: float
    sums: float
    element: float
    native: float
    ill_conditioned: float


_LIMITS = {
    "float64": _Limits(1e-10, 2e-14, 1e-9, 16.0, 1e-6),
    "float32": _Limits(1.5e-4, 1e-5, 1e-3, 16.0, 1e-3),  # TF32 or half operands give 3e-4 in a product
    "tf32": _Limits(1e-3, 1e-3, 1e-2, 6.0, 5e-2),  # operands rounded give 3e-4, cut off 8e-4, bfloat16 ones 2.3e-3
    "float16": _Limits(4e-3, 4e-3, 2e-2, 16.0, 5e-2),
    "bfloat16": _Limits(3e-2, 3e-2, 1e-1, 16.0, 3e-1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Bounds for one output tensor: ``rms`` and ``absolute`` in the output's unit, ``relative`` per element."""

    rms: float
    absolute: float
    relative: float


def tolerance_for(
    exact: Any, native: Any, loss: Loss | None = None, *, tf32: bool = False, anyway: bool = False
) -> Tolerance | None:
    """Bounds from the exact (fp64) and the native output; None when the task is ill-conditioned here.

    Args:
        loss: what the native output loses where it stands in for the exact one.
        tf32: whether TF32 was allowed when the native output was computed, as it was to the candidate.
        anyway: give bounds for an ill-conditioned task too; they allow what the native output loses.
    """
    dtype = str(native.dtype).removeprefix("torch.")
    limits = _LIMITS["tf32" if tf32 and dtype == "float32" else dtype]
    count = exact.numel()
    if not count:
        return Tolerance(rms=0.0, absolute=0.0, relative=0.0)
    mean = float(exact.mean())
    size = magnitude = variance = 0.0
    for _, right, _ in _chunks(exact, exact):
        size += _norm(right, 2) ** 2
        magnitude += _norm(right, 1)
        variance += _norm(right - mean, 2) ** 2
    scale, spread = math.sqrt(size / count), math.sqrt(variance / count)
    loss = loss or _loss(exact, native)
    own, largest = loss.rms, loss.largest
    if own > limits.ill_conditioned * scale and not anyway:
        return None
    allowed = limits.rms * scale
    if count > 1 and spread > 0:
        allowed = min(allowed, max(0.1 * spread, limits.sums * scale))
    return Tolerance(
        rms=max(allowed, limits.native * own),
        absolute=limits.element * magnitude / count + limits.native * largest,
        relative=limits.element,
    )


def mismatch(output: Any, exact: Any, tolerance: Tolerance) -> str:
    """Say how ``output`` differs, empty when it does not."""
    count = exact.numel()
    if not count:
        return ""
    wrong, first, squares = 0, -1, 0.0
    for start, right, value in _chunks(exact, output):  # a NaN is wrong
        error, size = (value.double() - right).abs(), right.double().abs()
        bad = ~(error <= tolerance.absolute + tolerance.relative * size)
        found = int(bad.sum())
        if found and first < 0:
            first = start + int(bad.nonzero()[0])
        wrong += found
        squares += _norm(error, 2) ** 2
    if wrong:
        return (
            f"{wrong} of {count} elements differ, the first at flat index {first}: "
            f"{float(output.reshape(-1)[first]):.6g} instead of {float(exact.reshape(-1)[first]):.6g}"
        )
    error_rms = math.sqrt(squares / count)
    if error_rms > tolerance.rms:
        lost, allowed = error_rms / rms(exact), tolerance.rms / rms(exact)
        return f"precision is too low: RMS error {lost:.2e} of the output, {allowed:.2e} allowed"
    return ""


CONTROLS = frozenset({"zeros", "mean"})
"""Trivial outputs that a task must be able to refute."""


def refuted(answer: Answer, bounds: list[Tolerance | None]) -> frozenset[str]:
    """Trivial outputs that are wrong by some output tensor of an answer."""
    found: frozenset[str] = frozenset()
    for exact, bound in zip(answer.exact_tensors, bounds, strict=True):
        if bound is None:
            found |= CONTROLS if varied(exact) else frozenset()
        else:
            found |= CONTROLS - powerless_controls(exact, bound)
    return found


def powerless_controls(exact: Any, tolerance: Tolerance) -> set[str]:
    """Those of :data:`CONTROLS` that the bounds would accept."""
    values = {"zeros": 0.0, "mean": float(exact.mean())}
    if exact.numel() == 1:
        del values["mean"]
    return {name for name, value in values.items() if _accepts(value, exact, tolerance)}


def _accepts(value: float, exact: Any, tolerance: Tolerance) -> bool:
    """Whether a tensor full of one number would be no :func:`mismatch`; told by the first part as a rule."""
    squares = 0.0
    for _, right, _ in _chunks(exact, exact):
        wide = right.double()
        error = (wide - value).abs()
        if bool((error > tolerance.absolute + tolerance.relative * wide.abs()).any()):
            return False
        squares += _norm(error, 2) ** 2
    return math.sqrt(squares / max(exact.numel(), 1)) <= tolerance.rms


def _loss(exact: Any, native: Any) -> Loss:
    """What the native output loses, measured; nothing where it is the exact one itself."""
    if native is exact:
        return Loss(rms=0.0, largest=0.0)
    squares = largest = 0.0
    for _, right, value in _chunks(exact, native):
        error = value.double() - right
        squares += _norm(error, 2) ** 2
        largest = max(largest, _norm(error, math.inf))
    return Loss(rms=math.sqrt(squares / exact.numel()), largest=largest)


def shares_of(answer: Answer) -> list[Loss | None]:
    """What each native output loses over its own RMS; None where that is not known or there is nothing to lose."""
    losses = answer.losses or [
        _loss(exact, native) if native.dtype.is_floating_point and native.numel() else None
        for exact, native in zip(answer.exact_tensors, answer.native_tensors, strict=True)
    ]
    sizes = map(rms, answer.native_tensors)
    return [loss and (loss.times(1 / size) if size else None) for loss, size in zip(losses, sizes, strict=True)]


def _norm(tensor: Any, order: float) -> float:
    """A vector norm in fp64, in one pass."""
    import torch

    return float(torch.linalg.vector_norm(tensor, order, dtype=torch.float64))


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


_MOST_OPEN = 0.5
"""Of a tensor of integers: when more depends on rounding errors, nothing can be said."""


def bounds_of(answer: Answer, *, anyway: bool = False) -> list[Tolerance | None] | None:
    """Tolerances, one for each output tensor (None: compare exactly); None when nothing can be said.

    Nothing can be said where the reference is not finite or, but for ``anyway``, loses too much in its own precision.
    """
    bounds: list[Tolerance | None] = []
    if not anyway and any(mask is not None and bool(mask.float().mean() > _MOST_OPEN) for mask in answer.open_to):
        return None
    losses = answer.losses or [None] * len(answer.native_tensors)
    for exact, native, loss in zip(answer.exact_tensors, answer.native_tensors, losses, strict=True):
        if not native.dtype.is_floating_point:
            bounds.append(None)
            continue
        if not is_finite(exact) or not is_finite(native):
            return None
        tolerance = tolerance_for(exact, native, loss, tf32=answer.tf32, anyway=anyway)
        if tolerance is None:
            return None
        bounds.append(tolerance)
    return bounds


def form_problem(facts: dict[str, Any], native: Any, device: str, aliases_allowed: bool) -> str:
    """What is wrong with structure, type, device, shape, dtype or aliasing; empty when nothing is."""
    import torch

    if isinstance(native, torch.Tensor):
        return _tensor_problem(facts, native, device, aliases_allowed)
    if isinstance(native, (list, tuple)):
        items = facts.get("items")
        if facts.get("kind") != "sequence" or not isinstance(items, list) or len(items) != len(native):
            return f"output must be a sequence of {len(native)}"
        problems = (form_problem(fact, part, device, aliases_allowed) for fact, part in zip(items, native, strict=True))
        return next((problem for problem in problems if problem), "")
    if isinstance(native, dict):
        items = facts.get("items")
        if facts.get("kind") != "mapping" or not isinstance(items, dict) or set(items) != {str(key) for key in native}:
            return f"output must be a dict with keys {sorted(map(str, native))}"
        problems = (form_problem(items[str(key)], part, device, aliases_allowed) for key, part in native.items())
        return next((problem for problem in problems if problem), "")
    same = facts.get("kind") == "other" and facts.get("value") == repr(native)[:200]
    return "" if same else f"output must be {native!r:.80}"


def _tensor_problem(facts: dict[str, Any], native: Any, device: str, aliases_allowed: bool) -> str:
    if facts.get("kind") == "odd":
        return f"output must be a plain torch.Tensor, got {facts.get('type')}"
    if facts.get("kind") != "tensor":
        return "output must be a torch.Tensor"
    wanted = {"shape": list(native.shape), "dtype": str(native.dtype).removeprefix("torch."), "device": device}
    for name, value in wanted.items():
        if facts.get(name) != value:
            return f"output {name} must be {value}, got {facts.get(name)}"
    if facts.get("aliases_input") and not aliases_allowed:
        return "output shares memory with an input"
    return ""


def output_problem(
    facts: dict[str, Any], tensors: list[Any], answer: Answer, bounds: list[Tolerance | None], device: str
) -> str:
    """What is wrong with an output; empty when it is right."""
    problem = form_problem(facts, answer.native, device, answer.aliases_input)
    if problem or len(tensors) != len(answer.native_tensors):
        return problem or "output has another number of tensors"
    return contents_problem(tensors, answer, bounds)


def contents_problem(tensors: list[Any], answer: Answer, bounds: list[Tolerance | None]) -> str:
    """What is wrong with as many tensors as the answer has; empty when nothing is."""
    for index, (tensor, bound) in enumerate(zip(tensors, bounds, strict=True)):
        native, exact = answer.native_tensors[index], answer.exact_tensors[index]
        if tensor.shape != native.shape or tensor.dtype != native.dtype:
            return "output description and contents disagree"
        if bound is None:
            problem = _exact_problem(tensor, native, answer.open_to[index] if answer.open_to else None)
        else:
            problem = mismatch(tensor.to(exact.device), exact, bound)
        if problem:
            return f"output {index}: {problem}" if len(tensors) > 1 else problem
    return ""


def _exact_problem(tensor: Any, native: Any, open_to: Any) -> str:
    wrong = tensor.to(native.device) != native
    different = int((wrong if open_to is None else wrong & ~open_to).sum())
    return f"{different} of {native.numel()} elements differ" if different else ""


def same_tensors(first: list[Any], second: list[Any]) -> bool:
    """Bit for bit the same, NaN aside."""
    import torch

    return len(first) == len(second) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def varied(exact: Any) -> bool:
    """Whether a tensor of integers or booleans holds more than one value."""
    return bool((exact != exact.flatten()[0]).any()) if exact.numel() else False


def largest_error_of(tensors: list[Any], answer: Answer) -> float:
    """Largest absolute error over the floating-point outputs."""
    errors = [
        largest_error(tensor.to(exact.device), exact)
        for tensor, exact in zip(tensors, answer.exact_tensors, strict=True)
        if exact.dtype.is_floating_point and exact.numel()
    ]
    return max(errors, default=0.0)
