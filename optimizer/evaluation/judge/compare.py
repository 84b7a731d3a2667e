"""One delivery of a candidate against one answer of the reference."""

from __future__ import annotations

from typing import Any

from optimizer.evaluation.judge.reference import Answer, Case
from optimizer.evaluation.judge.tolerance import Tolerance, is_finite, largest_error, mismatch, tolerance_for
from optimizer.evaluation.process.values import split

_MOST_OPEN = 0.5
"""Of a tensor of integers: when more depends on rounding errors, nothing can be said."""


def bounds_of(answer: Answer) -> list[Tolerance | None] | None:
    """Tolerances, one for each output tensor (None: compare exactly); None when nothing can be said.

    Nothing can be said where the reference is not finite or loses too much in its own precision.
    """
    bounds: list[Tolerance | None] = []
    if any(mask is not None and bool(mask.float().mean() > _MOST_OPEN) for mask in answer.open_to):
        return None
    for exact, native in zip(answer.exact_tensors, answer.native_tensors, strict=True):
        if not native.dtype.is_floating_point:
            bounds.append(None)
            continue
        if not is_finite(exact) or not is_finite(native):
            return None
        tolerance = tolerance_for(exact, native)
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


def modified_input(case: Case, inputs: list[Any]) -> int | None:
    """Index of the first input tensor that a call changed; None when all are as they were."""
    import torch

    given = split(case.inputs)[1]
    for index, (before, after) in enumerate(zip(given, inputs, strict=True)):
        if before.shape != after.shape or before.dtype != after.dtype:
            return index
        if not torch.equal(_bits(before), _bits(after.to(before.device))):
            return index
    return None


def _bits(tensor: Any) -> Any:
    """The tensor's memory as integers of its element size: NaN equals itself, 0 and -0 differ."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(-1).view(kinds.get(tensor.element_size(), torch.uint8))


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
