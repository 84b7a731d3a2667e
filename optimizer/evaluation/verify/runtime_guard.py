"""What a source can not show: that own kernels run, matter, and do the work."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from artifacts.measurement import GuardFinding, Outcome
from optimizer.evaluation.sandbox.recording import Operator, recorded_operators
from optimizer.evaluation.sandbox.torch_state import is_large
from optimizer.evaluation.sandbox.values import split
from optimizer.evaluation.verify.correctness import PlainTrial
from optimizer.evaluation.verify.failure import Failure, rejected
from optimizer.evaluation.verify.reference import Answer, Case, Reference
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.verify.tolerance import Tolerance, bounds_of, mismatch, output_problem
from optimizer.evaluation.verify.trials import transformed

STAGE = "runtime_guard"
_SHARE = 0.5
"""Torch does a family's work when it goes through this share of the reference's elements in no fewer calls."""

_MATMUL = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "matmul",
    "linear",
    "ger",
    "addr",
    "_trilinear",
    "bilinear",
    "cdist",
    "_cdist_forward",
    "_euclidean_dist",
    "_pdist_forward",
    "embedding_bag",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_sparse_mm",
    "_sparse_addmm",
    "sparse_sampled_addmm",
    "_addmm_activation",
    "_int_mm",
    "_scaled_mm",
    "_grouped_mm",
    "einsum",
    "tensordot",
}
_CONTRACTION = "products of matrices"
"""Family of matrix products and convolutions: one can be written as the other."""
_MOVES = {
    "alias", "as_strided", "broadcast_to", "chunk", "clone", "contiguous", "copy", "detach", "empty", "empty_like",
    "empty_strided", "expand", "fill", "flatten", "full", "full_like", "item", "lift_fresh", "movedim", "narrow",
    "new_empty", "new_empty_strided", "new_zeros", "new_full", "ones", "ones_like", "permute", "resize",
    "reshape", "select", "set", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "to", "_to_copy",
    "transpose", "unbind", "unfold", "unsafe_view", "_unsafe_view", "unsqueeze", "view", "view_as_real", "zero",
    "zeros", "zeros_like", "_local_scalar_dense", "arange", "_reshape_alias", "is_same_size", "scalar_tensor",
    "pad", "constant_pad_nd", "cat", "repeat", "roll", "flip", "index", "_has_compatible_shallow_copy_type",
}  # fmt: skip
"""Operators that allocate, view, copy or move: any candidate may use them."""


def observed(sandbox: SandboxClient, inputs: Sequence[object], backend: str) -> list[Operator]:
    """What the candidate goes through; on a CPU its inputs can not be written meanwhile.

    Raises:
        Failure: its process ends then, and did not in all the calls before.
    """
    try:
        return sandbox.observe(inputs)
    except Failure as failure:
        if not failure.gone or backend != "cpu":
            raise
        reason = "the candidate writes to its inputs and puts them back, or crashes, when these can not be written"
        raise Failure(Outcome.WRONG_RESULT, STAGE, reason) from failure


def own_kernels_run(calls: int, operators: Iterable[Operator]) -> None:
    """Fail when neither an extension's function, a Triton kernel nor a custom operator was called."""
    custom = [operator for operator in operators if operator.namespace != "aten"]
    if calls == 0 and not custom:
        raise rejected(STAGE, "own_kernel", "no kernel of the candidate ran")


def does_the_work(
    reference: Sequence[Operator], candidate: Sequence[Operator], products: int = 0
) -> GuardFinding | None:
    """Compare what torch does inside both; a finding that is not fatal when the work is shared.

    Args:
        reference, candidate: their operators.
        products: multiplications in matrix products and convolutions of the reference.

    Raises:
        Failure: torch operators inside the candidate do all that the reference does.
    """
    asked, left = _families(reference), _families(candidate)
    if not left or not asked:
        return None
    calls, calls_left = Counter(map(_family, reference)), Counter(map(_family, candidate))
    share = {family: _SHARE if calls_left[family] >= calls[family] else 1.0 for family in asked}
    if all(left[family] >= share[family] * work for family, work in asked.items()):
        raise rejected(STAGE, "fallback", f"torch operators do all of the reference's work: {', '.join(sorted(asked))}")
    if _CONTRACTION not in asked and left.total() >= asked.total():
        raise rejected(
            STAGE, "fallback", f"torch operators do as much work as in the reference: {', '.join(sorted(left))}"
        )
    if _CONTRACTION not in left and 0 < _SHARE * products <= left.total():
        raise rejected(STAGE, "fallback", f"torch operators multiply and add one by one: {', '.join(sorted(left))}")
    return GuardFinding(
        rule="torch_operators", message=f"part of the work is left to torch: {', '.join(sorted(left))}", fatal=False
    )


def kernels_matter(sandbox: SandboxClient, trial: PlainTrial, reference: Reference) -> None:
    """Take the effect of own kernels away; the output must then be wrong.

    Raises:
        Failure: it is still right, so the kernels are decoration.
    """
    device = reference.device
    case = reference.filled(trial.case)
    if _right_without(sandbox, case, lambda: (trial.answer, trial.bounds), device, "void"):
        raise rejected(STAGE, "decoy", "the output stays right when the candidate's own kernels give nothing")
    optional = dataclasses.replace(case.trial, required=False)
    inputs = transformed(case.inputs, "normal")
    case.put_away()
    case = dataclasses.replace(case, trial=optional, inputs=inputs)
    del inputs
    answer = reference.answer_if_any(case)
    bounds = None if answer is None else bounds_of(answer)
    if answer is None or bounds is None or _like_an_input(case, answer, bounds):
        return
    known = None if is_large(answer.exact_tensors) else answer
    del answer
    if _right_without(sandbox, case, lambda: (known or reference.answer(case), bounds), device, "echo"):
        raise rejected(STAGE, "decoy", "the output stays right when own kernels give back what they are given")


def _right_without(
    sandbox: SandboxClient,
    case: Case,
    known: Callable[[], tuple[Answer, list[Tolerance | None]]],
    device: str,
    mode: str,
) -> bool:
    """Whether the candidate gives what is ``known`` to be right without its own kernels' effect."""
    try:
        sandbox.construct(case)
        delivery = sandbox.call(case.inputs, mode=mode)
    except Failure as failure:
        if failure.outcome in (Outcome.RUNTIME_ERROR, Outcome.TIMEOUT):
            return False
        raise
    if delivery.extra.get("own_results"):
        return False
    answer, bounds = known()
    return not output_problem(delivery.facts, delivery.tensors, answer, bounds, device)


def _like_an_input(case: Case, answer: Answer, bounds: list[Tolerance | None]) -> bool:
    """Whether giving an input back is a right answer."""
    given = split(case.inputs)[1]
    pairs = zip(answer.exact_tensors, bounds, strict=True)
    return any(
        bound is not None and exact.shape == tensor.shape and not mismatch(tensor, exact, bound)
        for exact, bound in pairs
        for tensor in given
    )


def operators_of(model: object, inputs: Sequence[object]) -> list[Operator]:
    """What the reference goes through."""
    assert callable(model)
    return recorded_operators(lambda: model(*inputs))


def _families(operators: Sequence[Operator]) -> Counter[str]:
    """Elements that each family of computing operators goes through."""
    work: Counter[str] = Counter()
    for operator in operators:
        if family := _family(operator):
            work[family] += operator.work
    return work


def _family(operator: Operator) -> str:
    """Operators that compute alike share a family; empty for those that only move data."""
    if operator.namespace != "aten":
        return ""
    name = operator.name.removesuffix("_")
    if name in _MOVES or operator.work <= 1:
        return ""
    return _CONTRACTION if name in _MATMUL or "conv" in name else name
