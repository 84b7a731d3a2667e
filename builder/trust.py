"""How far a recorded step can be believed: flags found by looking at code and figures, never at file names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple, Self

from artifacts.candidate import Language
from artifacts.device import device_spec
from artifacts.outcome import Outcome
from artifacts.task_bytes import reference_bytes, task_bytes
from artifacts.trajectory import Step, Trajectory, TrustFlag
from builder.glossary.sure_text import sure_text

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
    limit = memory_limit_us(trajectory)
    baseline = _typical_baseline(trajectory.steps)
    mixed = _lowers_precision(trajectory.reference or trajectory.steps[0].code)
    repeated = _repeats(trajectory.steps)
    steps = [
        replace(
            step,
            flags=step.flags
            | set(_code_flags(step, trajectory.reference, mixed))
            | set(_figure_flags(step, baseline, limit))
            | ({TrustFlag.DUPLICATED} if step.step_id in repeated else set()),
        )
        for step in trajectory.steps
    ]
    return replace(trajectory, steps=tuple(steps))


def flag_repeats(trajectories: Iterable[Trajectory]) -> tuple[Trajectory, ...]:
    """Flag edges that an earlier trajectory (by id) already holds: the same log published twice, in part or whole.

    An edge repeats when task, device, both sources and the measured time are the same.
    """
    given = tuple(trajectories)
    seen: set[tuple[object, ...]] = set()
    flagged: dict[str, Trajectory] = {}
    for trajectory in sorted(given, key=lambda each: each.trajectory_id):
        keys = dict(_edges(trajectory))
        again = {step_id for step_id, key in keys.items() if key in seen}
        seen.update(keys.values())
        flagged[trajectory.trajectory_id] = _with_flag(trajectory, again, TrustFlag.DUPLICATED)
    return tuple(flagged[trajectory.trajectory_id] for trajectory in given)


def memory_limit_us(trajectory: Trajectory) -> float | None:
    """Least time in microseconds that the device's memory allows for the task; None when it cannot be told.

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


def _figure_flags(step: Step, baseline: float | None, limit: float | None) -> Iterator[TrustFlag]:
    if baseline and step.baseline_us and abs(step.baseline_us / baseline - 1) > BASELINE_DRIFT:
        yield TrustFlag.BASELINE_CHANGED
    if limit is not None and step.runtime_us is not None and step.runtime_us < LIMIT_MARGIN * limit:
        yield TrustFlag.BELOW_PHYSICAL_LIMIT
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


def _edges(trajectory: Trajectory) -> Iterator[tuple[str, tuple[object, ...]]]:
    sources = {step.step_id: step.sha256 for step in trajectory.steps}
    for step in trajectory.steps:
        if step.parent_id is not None and step.outcome is Outcome.CORRECT:
            edge = (sources[step.parent_id], sources[step.step_id], step.runtime_us, step.ratio_to_parent)
            yield step.step_id, (trajectory.task.task_id, trajectory.device, *edge)


def _with_flag(trajectory: Trajectory, step_ids: set[str], flag: TrustFlag) -> Trajectory:
    if not step_ids:
        return trajectory
    steps = (
        replace(step, flags=step.flags | {flag}) if step.step_id in step_ids else step for step in trajectory.steps
    )
    return replace(trajectory, steps=tuple(steps))


def _typical_baseline(steps: Sequence[Step]) -> float | None:
    baselines = [step.baseline_us for step in steps if step.baseline_us is not None]
    return median(baselines) if baselines else None


def _slowest_us(steps: Sequence[Step]) -> float | None:
    """Baseline where there is one, else the slowest kernel: neither can be below the limit."""
    return _typical_baseline(steps) or max((step.runtime_us for step in steps if step.runtime_us), default=None)
