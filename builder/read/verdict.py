"""From the words and figures of other harnesses to typed outcomes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.measurement import Outcome
from artifacts.trajectory import TrustFlag
from builder.read.fields import BadRecordError, Fields

MS = 1000.0
UNTIMED = (-1.0, 0.0)
"""What harnesses write where nothing was timed."""
NO_MESSAGE = "failed without a message"
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
_ADVICE = re.compile(r"Compile with `?TORCH_USE_CUDA_DSA")
"""What PyTorch adds to every CUDA error says nothing of a compiler's."""
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

    @classmethod
    def of(
        cls,
        correct: bool,
        error: str,
        *,
        compiled: bool | None = None,
        runtime_us: float | None = None,
        baseline_us: float | None = None,
        statistic: str = "unknown",
        flags: frozenset[TrustFlag] = frozenset(),
    ) -> Verdict:
        """A verdict of yes or no; a failure keeps its ``error`` and no run time, a correct candidate the reverse."""
        return cls(
            outcome=Outcome.CORRECT if correct else failure_outcome(error, compiled=compiled),
            error="" if correct else error or NO_MESSAGE,
            runtime_us=runtime_us if correct else None,
            baseline_us=baseline_us,
            statistic=statistic,
            flags=flags,
        )


def failure_outcome(text: str, *, compiled: bool | None = None) -> Outcome:
    """The kind of failure that an error text describes.

    Args:
        compiled: what the log says besides: False makes it a compile error unless the text says otherwise;
            a compiled candidate without a telling text gave a wrong result.
    """
    start = _ADVICE.sub("", text[:4000])
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
    runtime = record.time_us("runtime", "avg_runtime", unit_us=MS, unset=UNTIMED)
    error = "" if correct else _kernelbench_error(record, metadata)
    return Verdict(
        outcome=Outcome.CORRECT if correct else _kernelbench_failure(metadata, error, compiled),
        error=error,
        runtime_us=runtime if correct else None,
        baseline_us=record.time_us("ref_runtime", "baseline_runtime", unit_us=MS, unset=UNTIMED),
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
    message = next((text for text in messages if text), NO_MESSAGE)
    kind = next((text for text in kinds if text), "")
    difference = metadata.get("max_difference")
    parts = (kind, message, f"max difference {difference}" if difference else "")
    return Fields({"error": ": ".join(part for part in parts if part)}).text("error")


def _trials(metadata: Fields) -> int:
    match = _TRIALS.search(str(metadata.get("correctness_trials") or ""))
    return int(match.group(2)[:9]) if match else 1


_UNIT = r"(?:_|_in_)(us|ms|s|ns)$"
_RUN = r"^(?:\w*_)?(?:run_?time|latency|time|duration)"
_MIDDLE = r"^(?:\w*_)?(?:geo_?mean|mean|avg|average|median|p50|min|best)"
_TIMES = tuple(re.compile(words + _UNIT) for words in (_RUN, _MIDDLE))
"""What a time of the candidate may be called, the plainer names first."""
_BASELINE = re.compile(r"^(?:baseline|reference|ref|eager|torch)_(?:run_?time|latency|time|duration)" + _UNIT)
_OTHER = re.compile(
    r"(?:^|_)(?:baseline|ref|reference|eager|torch|parent|compil\w*|build|eval\w*|setup|wall|timeout|budget|limit|std)(?:_|$)"
)
"""Times of something else: of the reference, of the evaluator, spreads."""
_UNIT_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_VERDICTS = ("correct", "correctness", "is_correct", "passed", "valid", "validity", "runs_successfully", "success")


def metrics_verdict(metrics: Fields, artifacts: Mapping[str, object] | None = None) -> Verdict:
    """Read a verdict and times from metrics.

    A time without a verdict counts as correct: evaluators return a time only then. A speedup beside a time
    gives the baseline.

    Args:
        artifacts: what the evaluator left beside its metrics; its error text says how a candidate failed.

    Raises:
        BadRecordError: neither a verdict nor a time, or values that cannot be.
    """
    runtime, baseline = _runtime_us(metrics), _first_time_us(metrics, _BASELINE)
    verdict = _verdict(metrics, timed=runtime is not None)
    if verdict is None and runtime is None:
        raise BadRecordError("metrics hold neither a verdict nor a time")
    if verdict is False:
        message = _error(metrics, artifacts or {}) or "the evaluator's metrics say incorrect"
        return Verdict.of(False, message[:4000], baseline_us=baseline)
    speedup = metrics.number("speedup")
    if baseline is None and runtime is not None and speedup is not None and speedup > 0:
        baseline = runtime * speedup
    return Verdict(outcome=Outcome.CORRECT, runtime_us=runtime, baseline_us=baseline)


def _runtime_us(metrics: Fields) -> float | None:
    own = Fields({name: value for name, value in metrics.data.items() if not _OTHER.search(str(name))})
    return next((value for rule in _TIMES if (value := _first_time_us(own, rule)) is not None), None)


def _first_time_us(metrics: Fields, rule: re.Pattern[str]) -> float | None:
    for name in sorted(str(key) for key in metrics.data):
        match = rule.match(name)
        if match:
            value = metrics.time_us(name, unit_us=_UNIT_US[match.group(1)], unset=UNTIMED)
            if value is not None:
                return value
    return None


def _verdict(metrics: Fields, *, timed: bool) -> bool | None:
    """True or False where a verdict is there; scores between are shares of tests and true only when all passed.

    OpenEvolve itself returns ``{"error": 0.0}`` for what raised and adds ``timeout``. A number called error beside
    a time is how far the outputs are off, and no verdict.
    """
    if metrics.get("timeout") is True:
        return False
    for name in _VERDICTS:
        value = metrics.get(name)
        if isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return value >= 1
    error = metrics.get("error")
    failed = bool(error) if isinstance(error, str) else error is not None and not timed
    return False if failed else None


def _error(metrics: Fields, artifacts: Mapping[str, object]) -> str:
    """The first text that says how a candidate failed, in the metrics or in what was left beside them."""
    names = ("error", "error_message", "stderr", "traceback", "compile_error", "error_type")
    texts = (holder.get(name) for holder in (metrics.data, artifacts) for name in names)
    found = next((text for text in texts if isinstance(text, str) and text), "")
    return found or ("timeout" if metrics.get("timeout") is True else "")
