"""Verdict and time from metrics that users name as they like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.outcome import Outcome
from builder.logs.fields import BadRecordError, Fields
from builder.logs.verdict import failure_outcome

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What metrics tell of one candidate; times in microseconds."""

    outcome: Outcome
    error: str = ""
    runtime_us: float | None = None
    baseline_us: float | None = None


def judge(metrics: Fields, artifacts: Mapping[str, object] | None = None) -> Judgement:
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
        raise BadRecordError("metrics tell neither a verdict nor a time")
    if verdict is False:
        message = _error(metrics, artifacts or {}) or "the evaluator's metrics say incorrect"
        return Judgement(outcome=failure_outcome(message), error=message[:4000], baseline_us=baseline)
    speedup = metrics.number("speedup")
    if baseline is None and runtime is not None and speedup is not None and speedup > 0:
        baseline = runtime * speedup
    return Judgement(outcome=Outcome.CORRECT, runtime_us=runtime, baseline_us=baseline)


def _runtime_us(metrics: Fields) -> float | None:
    own = Fields({name: value for name, value in metrics.data.items() if not _OTHER.search(str(name))})
    return next((value for rule in _TIMES if (value := _first_time_us(own, rule)) is not None), None)


def _first_time_us(metrics: Fields, rule: re.Pattern[str]) -> float | None:
    for name in sorted(str(key) for key in metrics.data):
        match = rule.match(name)
        if match:
            value = metrics.time_us(name, unit_us=_UNIT_US[match.group(1)], unset=(-1.0, 0.0))
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
