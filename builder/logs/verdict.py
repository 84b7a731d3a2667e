"""From the words of other harnesses to typed outcomes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from artifacts.outcome import Outcome
from artifacts.trajectory import TrustFlag
from builder.logs.fields import Fields

MS = 1000.0
_RULES = (
    (
        Outcome.INFRA_ERROR,
        r"spend(?:ing)? limit|billing cycle|(?:quota|rate limit) (?:exceeded|reached)|no space left on device"
        r"|connection (?:refused|reset)|\bGPU is lost|uncorrectable ECC|service unavailable",
    ),
    (Outcome.TIMEOUT, r"time[d_ ]*out|timeout|deadline exceeded"),
    (
        Outcome.WRONG_RESULT,
        r"not close|output mismatch|shape mismatch|incorrect_\w+|is incorrect|max_abs_err|allclose|numerical(ly)? "
        r"|wrong (result|output|shape)|incorrect (result|output|shape|dtype)",
    ),
    (
        Outcome.COMPILE_ERROR,
        r"compil(?!e_and_run)|build ?error|error building extension|\bnvcc\b|\bninja\b|syntax ?error|invalid syntax"
        r"|undefined symbol|cannot open shared object|failed importing",
    ),
    (
        Outcome.RUNTIME_ERROR,
        r"run[-_ ]?time_?error|exception|traceback|illegal memory|out of memory|cuda error|assert|\w+error\b",
    ),
)
_OUTCOME_RULES = tuple((outcome, re.compile(pattern, re.IGNORECASE)) for outcome, pattern in _RULES)
_TRIALS = re.compile(r"\(\s*(\d+)\s*/\s*(\d+)\s*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a harness said about one candidate; times in microseconds."""

    outcome: Outcome
    error: str = ""
    runtime_us: float | None = None
    baseline_us: float | None = None
    statistic: str = "unknown"
    device: str = ""
    flags: frozenset[TrustFlag] = frozenset()


def failure_outcome(text: str, *, compiled: bool | None = None) -> Outcome:
    """The kind of failure that an error text tells of.

    Args:
        compiled: what the log says besides: False makes it a compile error unless the text says otherwise;
            a compiled candidate without a telling text gave a wrong result.
    """
    start = text[:4000]
    found = next((outcome for outcome, pattern in _OUTCOME_RULES if pattern.search(start)), None)
    if compiled is False and found not in (Outcome.TIMEOUT, Outcome.INFRA_ERROR):
        return Outcome.COMPILE_ERROR
    if found is Outcome.COMPILE_ERROR and compiled:
        return Outcome.RUNTIME_ERROR
    return found or Outcome.WRONG_RESULT


def kernelbench_verdict(record: Fields) -> Verdict:
    """Verdict of a KernelBench evaluation: ``compiled, correctness, metadata, runtime, runtime_stats``, times in ms.

    A correct candidate with run time -1 was not timed. The number of correctness trials is in the metadata;
    a single one is flagged.
    """
    metadata = record.child("metadata")
    stats = record.child("runtime_stats")
    compiled, correct = record.flag("compiled"), bool(record.flag("correctness", "correct"))
    runtime = record.time_us("runtime", "avg_runtime", unit_us=MS, unset=(-1.0, 0.0))
    error = "" if correct else _kernelbench_error(record, metadata)
    return Verdict(
        outcome=Outcome.CORRECT if correct else _kernelbench_failure(metadata, error, compiled),
        error=error,
        runtime_us=runtime if correct else None,
        baseline_us=record.time_us("ref_runtime", "baseline_runtime", unit_us=MS, unset=(-1.0, 0.0)),
        statistic="mean" if stats.get("mean") is not None else "unknown",
        device=metadata.text("hardware") or stats.text("hardware"),
        flags=frozenset({TrustFlag.ONE_SEED}) if correct and _trials(metadata) <= 1 else frozenset(),
    )


def _kernelbench_failure(metadata: Fields, error: str, compiled: bool | None) -> Outcome:
    if metadata.get("compilation_error", "compilation_error_name") is not None:
        return Outcome.COMPILE_ERROR
    if metadata.get("runtime_error", "runtime_error_name", "cuda_error", "gpu_error") is not None:
        return Outcome.TIMEOUT if failure_outcome(error) is Outcome.TIMEOUT else Outcome.RUNTIME_ERROR
    if metadata.get("correctness_issue", "max_difference") is not None:
        return Outcome.WRONG_RESULT
    return failure_outcome(error, compiled=compiled)


def _kernelbench_error(record: Fields, metadata: Fields) -> str:
    """The first message the evaluation left, with the differences it measured."""
    names = (
        "compilation_error",
        "runtime_error",
        "correctness_issue",
        "cuda_error",
        "other_error",
        "error_message",
        "error",
    )
    messages = [str(metadata.get(name) or "") for name in names]
    messages.append(str(record.get("error") or ""))
    kinds = [str(metadata.get(name) or "") for name in ("compilation_error_name", "runtime_error_name", "gpu_error")]
    message = next((text for text in messages if text), "failed without a message")
    kind = next((text for text in kinds if text), "")
    difference = metadata.get("max_difference")
    parts = (kind, message, f"max difference {difference}" if difference else "")
    return Fields({"error": ": ".join(part for part in parts if part)}).text("error")


def _trials(metadata: Fields) -> int:
    match = _TRIALS.search(str(metadata.get("correctness_trials") or ""))
    return int(match.group(2)[:9]) if match else 1
