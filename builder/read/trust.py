"""How far a recorded step can be believed: flags found by looking at code and figures, never at file names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple, Self

from artifacts.candidate import Language
from artifacts.device import device_spec
from artifacts.task_bytes import reference_bytes, task_bytes
from artifacts.trajectory import Step, Trajectory, TrustFlag

_BRACKETS = "()[]|"
_ESCAPED = re.compile(r"\\([()\[\]|])")
_SET = re.compile(r"\[(?:\\.|[^\]\\])*\](?:[?*+]|\{[\d,]*\})?")
_GROUP = re.compile(r"\([^()]*\)(?:[?*+]|\{[\d,]*\})?")
_NO_TEXT = re.compile(r"\\[^\W\d_](?:[?*+]|\{[\d,]*\})?|\\?.(?:[?*]|\{[\d,]*\})|\\(?=\W)|[+]|(?<!\\)[.^$]")


def sure_text(pattern: str) -> str:
    """Longest text that stands in whatever ``pattern`` matches; empty when none is sure.

    Groups, sets and classes are taken to hold none, nor does a letter that a quantifier may take away. Patterns with
    alternatives outside of groups give none.
    """
    bare, groups = _SET.sub("\n", _ESCAPED.sub(lambda match: chr(_BRACKETS.index(match[1]) + 1), pattern)), 1
    while groups:
        bare, groups = _GROUP.subn("\n", bare)
    if "|" in bare:
        return ""
    longest = max(_NO_TEXT.sub("\n", bare).split("\n"), key=len)
    return "".join(_BRACKETS[ord(letter) - 1] if ord(letter) <= len(_BRACKETS) else letter for letter in longest)


BASELINE_DRIFT = 0.10
"""Baselines of one trajectory that differ from their median by more than this share have changed."""

LIMIT_MARGIN = 0.95
"""Times below this share of the memory limit cannot be; the rest is left to rounding and boost clocks."""

NO_CODE_WORDS = frozenset({"", "none", "null", "nan"})
"""What logs write where a source is missing."""

HACK_PATTERNS = {
    "caches results": (
        r"self\.\w{0,60}cach",
        r"cache\w{0,60}\s{0,9}(?::[^=\n]{0,80})?=\s{0,9}(?:\{|dict\(|OrderedDict|None)",
        r"in \w{0,40}cache\b",
        r"lru_cache",
        r"data_ptr\(\)\s*(?:==|!=|\bin\b)",
    ),
    "replays a recorded graph": (r"CUDAGraph\s*\(", r"cuda\.graph\s*\(", r"make_graphed_callables"),
    "changes the clock": (
        r"cuda\.(?:Event|synchronize)\s*=(?!=)",
        r"Event\.elapsed_time\s*=(?!=)",
        r"time\.(?:time|perf_counter)\s*=(?!=)",
    ),
    "hides work in threads or processes": (
        r"import (?:threading|multiprocessing|concurrent)\b",
        r"from (?:threading|multiprocessing|concurrent)\b",
        r"ThreadPoolExecutor",
    ),
    "leaves work on a side stream": (r"cuda\.(?:Stream|stream)\s*\(",),
    "falls back when the kernel fails": (
        r"except\b[^\n]{0,100}:\s{0,200}\n[^\n]{0,100}(?:return|=)[^\n]{0,100}(?:torch\.|F\.|super\(\))",
    ),
    "runs the reference": (r"ModelNew\s*\(\s*Model\s*\)", r"Model\((?<![\w.]Model\()(?<!class Model\()"),
    "looks into its caller": (r"sys\._getframe\b", r"inspect\.(?:stack|currentframe)\b", r"gc\.get_objects\b"),
}
"""Meaning → patterns of code that may earn a time without the work.

Each begins with literal text, by which ``re`` finds the few places worth a closer look.
"""

LOWER_PRECISION = (
    r"\.half\(\)",
    r"\.bfloat16\(\)",
    r"torch(?:::k|\.)(?:b?float16|half|BFloat16|Half)\b",
    r"tl\.b?float16\b",
    r"at::(?:k?BFloat16|k?Half)\b",
    r"autocast\b",
    r"__half\b",
    r"__nv_bfloat16\b",
    r"allow_tf32\s*=\s*True",
    r"set_float32_matmul_precision\(\s*['\"](?:high|medium)",
    r"wmma::precision::tf32",
)
"""Patterns of code that computes in fewer than 32 bits."""


class _Rule(NamedTuple):
    """A pattern with the text that it cannot do without, which is looked for first."""

    text: str
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, rule: str) -> Self:
        return cls(sure_text(rule), re.compile(rule))

    def fits(self, code: str) -> bool:
        return self.text in code and self.pattern.search(code) is not None


_HACKS = {meaning: tuple(map(_Rule.of, rules)) for meaning, rules in HACK_PATTERNS.items()}
_LOWER_PRECISION = tuple(map(_Rule.of, LOWER_PRECISION))
_LINE_COMMENTS = re.compile(r"(?<![:'\"])//[^\n]*|#(?!include|pragma|define|if|endif)[^\n]*")


def flag_trajectory(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with the flags that its own code and figures show, beside those already set."""
    baseline = _typical_baseline(trajectory.steps)
    mixed = _lowers_precision(trajectory.reference or trajectory.steps[0].code)
    repeated = _repeats(trajectory.steps)
    steps = [
        replace(
            step,
            flags=step.flags
            | set(_code_flags(step, trajectory.reference, mixed))
            | set(_figure_flags(step, baseline))
            | ({TrustFlag.DUPLICATED} if step.step_id in repeated else set()),
        )
        for step in trajectory.steps
    ]
    return replace(trajectory, steps=tuple(steps))


def memory_limit_us(trajectory: Trajectory) -> float | None:
    """Least time in microseconds that the device's memory allows for the task; None when it is not known.

    Sizes come from the reference in the log; without one, from the published KernelBench sizes, which are
    believed only when the baseline (or the slowest kernel) of the trajectory is above the limit they give.
    Tensors that could stay in the last-level cache between runs give no limit.
    """
    device = device_spec(trajectory.device)
    sizes = task_bytes(trajectory.task, trajectory.reference)
    if sizes is None or device.dram_gb_s is None:
        return None
    moved = sizes.least_moved(trajectory.task.family) * (0.5 if "triangular" in trajectory.task.task_id else 1.0)
    if moved < 2 * (device.l2_mb or 0.0) * 2**20:
        return None
    limit = moved / device.dram_gb_s / 1000
    own_sizes = reference_bytes(trajectory.reference) is not None
    return limit if own_sizes or (_slowest_us(trajectory.steps) or 0.0) >= limit else None


def impossible(trajectory: Trajectory) -> dict[str, str]:
    """Step id to the reason why its time is no measurement: the device's memory cannot be that fast."""
    limit = memory_limit_us(trajectory)
    if limit is None:
        return {}
    return {
        step.step_id: f"{step.runtime_us:g} us is no measurement: moving the bytes alone takes {limit:.4g} us"
        for step in trajectory.steps
        if step.runtime_us is not None and step.runtime_us < LIMIT_MARGIN * limit
    }


def hacks_in(code: str) -> tuple[str, ...]:
    """Meanings of the :data:`HACK_PATTERNS` that ``code`` shows outside its comments."""
    return _signs(code).hacks


def without_comments(code: str) -> str:
    """The code without ``#``, ``//`` and ``/* */`` comments, in one pass whatever the text is."""
    lines = (_LINE_COMMENTS.sub("", line) if "#" in line or "//" in line else line for line in code.split("\n"))
    first, *rest = "\n".join(lines).split("/*")
    return first + "".join(piece.partition("*/")[2] for piece in rest)


class _Signs(NamedTuple):
    hacks: tuple[str, ...]
    lowers_precision: bool


@functools.lru_cache(maxsize=8192)
def _signs(code: str) -> _Signs:
    """What the patterns find, once a source: steps share sources, within a trajectory and across."""
    bare = without_comments(code)
    return _Signs(
        tuple(meaning for meaning, rules in _HACKS.items() if any(rule.fits(bare) for rule in rules)),
        any(rule.fits(bare) for rule in _LOWER_PRECISION),
    )


def _lowers_precision(code: str) -> bool:
    return _signs(code).lowers_precision


def _code_flags(step: Step, reference: str, mixed: bool) -> Iterator[TrustFlag]:
    if step.code.strip().lower() in NO_CODE_WORDS:
        yield TrustFlag.NO_CODE
        return
    if step.code == reference:
        return
    if step.language is Language.TORCH:
        yield TrustFlag.TORCH_ONLY
    if hacks_in(step.code):
        yield TrustFlag.HACK_PATTERN
    if not mixed and _lowers_precision(step.code):
        yield TrustFlag.PRECISION_DROPPED


def _figure_flags(step: Step, baseline: float | None) -> Iterator[TrustFlag]:
    if baseline and step.baseline_us and abs(step.baseline_us / baseline - 1) > BASELINE_DRIFT:
        yield TrustFlag.BASELINE_CHANGED
    if step.ratio_to_parent is not None and step.runtime_us is None:
        yield TrustFlag.RATIO_ONLY


def _repeats(steps: Sequence[Step]) -> set[str]:
    """Ids of steps whose source an earlier step of the trajectory already has."""
    seen: set[str] = set()
    repeated: set[str] = set()
    for step in steps:
        identity = step.sha256
        if identity in seen and step.code.strip().lower() not in NO_CODE_WORDS:
            repeated.add(step.step_id)
        seen.add(identity)
    return repeated


def _typical_baseline(steps: Sequence[Step]) -> float | None:
    baselines = [step.baseline_us for step in steps if step.baseline_us is not None]
    return median(baselines) if baselines else None


def _slowest_us(steps: Sequence[Step]) -> float | None:
    """Baseline where there is one, else the slowest kernel: neither can be below the limit."""
    return _typical_baseline(steps) or max((step.runtime_us for step in steps if step.runtime_us), default=None)
