"""Which directions make sense at all in a state, whatever their record: by the ids of the seed taxonomy.

Recorded steps start from a kernel, and some of them mend or merely examine it. Directions that the taxonomy does not
know are never excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from artifacts.memory.attention import DirectionScore
from artifacts.trajectory import State

MENDING = frozenset({"build_fix", "correctness_fix"})
EXAMINING = frozenset({"diagnosis"})
NEEDS_A_KERNEL = frozenset(
    {
        "boundary_handling",
        "instruction_throughput",
        "latency_hiding",
        "launch_overhead",
        "occupancy",
        "precision",
        "synchronization",
    }
)
BY_PROGRAM = frozenset({"parameter_tuning"})
"""What ``--tunables`` searches; a step of the model is worth more elsewhere, see docs/decisions/negative-results.md."""

NARROWING = frozenset({"precision.half_precision", "precision.fp8_quantization"})
"""Strategies that give up precision. Tensor cores do not: products of operands that are split into parts keep it."""
MATRIX_UNITS = frozenset({"precision"})
PRODUCTS = frozenset({"precision.tensor_cores"})
NO_PRODUCTS = frozenset({"elementwise", "loss", "normalization", "pooling", "reduction", "scan", "softmax", "sort"})
"""Families of operators in which nothing is multiplied that a matrix unit could take."""
WIDE = frozenset({"float32", "float64"})
"""Input types whose precision the rules of an answer demand."""

FORBIDDEN = frozenset(
    {
        *("library.library_call", "library.framework_compilation", "library.memory_format"),
        *("own_kernel.first_kernel", "correctness_fix.safe_fallback"),
    }
)
"""Strategies that hand the work to the operators that are to be replaced, which the guard rejects, or say what every
answer does."""

CPU_ONLY = frozenset({"cpu_parallelism"})
GPU_ONLY = frozenset({"occupancy", "launch_overhead"})


def inapplicable(direction_id: str, state: State) -> str:
    """Why a direction is pointless before the next step from ``state``; empty when it is not."""
    if direction_id in MENDING:
        return "nothing is broken"
    if direction_id in EXAMINING:
        return "it changes nothing"
    if direction_id in BY_PROGRAM:
        return "constants are for a program to search"
    if direction_id in MATRIX_UNITS and state.dtype in WIDE and state.arch == "cpu":
        return f"the task is {state.dtype}, its precision must stay, and a CPU has no matrix units"
    if direction_id in NEEDS_A_KERNEL and state.runtime_us is None:
        return "there is no kernel yet that it could change"
    if direction_id in (GPU_ONLY if state.arch == "cpu" else CPU_ONLY):
        return f"it has no meaning on {state.arch}"
    return ""


def barred(strategy_id: str, state: State) -> bool:
    """Whether a strategy is never to be offered in ``state``.

    It is forbidden, for a program, needs products where the operator has none, or comes at the cost of precision.
    """
    if strategy_id in FORBIDDEN or strategy_id.partition(".")[0] in BY_PROGRAM:
        return True
    if strategy_id in PRODUCTS and state.family in NO_PRODUCTS:
        return True
    return strategy_id in NARROWING and state.dtype in WIDE


def with_inapplicable_masked(scores: Sequence[DirectionScore], state: State) -> tuple[DirectionScore, ...]:
    """``scores`` with the pointless directions masked, and why."""
    return tuple(
        score if score.masked else replace(score, masked=inapplicable(score.direction_id, state)) for score in scores
    )
