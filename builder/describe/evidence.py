"""What profilers and error messages say: the bottleneck of a kernel, and the class of a failure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from artifacts.device import DeviceSpec
from artifacts.measurement import Bottleneck, Outcome

BUSY = 60.0
"""Percent of peak from which a unit counts as the limit (the border Nsight Compute's own rules use)."""

IDLE = 40.0
"""Percent below which both memory and compute count as waiting: latency limits."""

LAUNCH_US = 5.0
"""Kernels shorter than this take about as long to launch as to run."""

DRAM = ("DRAMThroughput", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput", "dram_pct")
MEMORY = (
    "MemoryThroughput",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "mem_pct",
)
L2 = ("L2CacheThroughput", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed", "L2 Cache Throughput")
COMPUTE = (
    "ComputeSMThroughput",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
    "sm_pct",
)
DURATION_NS = ("Duration", "gpu__time_duration.sum", "duration_ns")
BOUND_FRACTION = ("fraction_of_bound",)


def metric(profile: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """First of ``names`` that the profile has; None when it has none."""
    return next((profile[name] for name in names if name in profile), None)


def bottleneck(profile: Mapping[str, float]) -> Bottleneck:
    """Bottleneck by percent of peak: the busier of memory and compute when above 60, latency when both are below 40.

    A kernel of less than 5 us is limited by its launch; between the thresholds the busier side counts when it leads
    by a factor of 1.5.
    """
    memory = _busiest(profile, (*DRAM, *MEMORY, *L2))
    compute = metric(profile, COMPUTE)
    if memory is None or compute is None:
        return Bottleneck.UNKNOWN
    duration = metric(profile, DURATION_NS)
    if duration is not None and duration < LAUNCH_US * 1000:
        return Bottleneck.LAUNCH
    leader = Bottleneck.MEMORY if memory >= compute else Bottleneck.COMPUTE
    busy, other = max(memory, compute), min(memory, compute)
    if busy < IDLE:
        return Bottleneck.LATENCY
    if busy >= BUSY or busy >= 1.5 * other:
        return leader
    return Bottleneck.LATENCY


def fraction_of_bound(profile: Mapping[str, float]) -> float | None:
    """Share of the speed of light, 0..1: as logged, else the busier of DRAM and compute as a share of its peak.

    The second is an upper bound: a kernel that moves more bytes than it must looks better than it is.
    """
    logged = metric(profile, BOUND_FRACTION)
    if logged is not None:
        return min(max(logged, 0.0), 1.0)
    dram, compute = metric(profile, DRAM), metric(profile, COMPUTE)
    if dram is None or compute is None:
        return None
    return min(max(dram, compute, 0.0) / 100.0, 1.0)


def size_regime(profile: Mapping[str, float], device: DeviceSpec) -> str:
    """Shape regime from the bytes that the profile says were moved; ``unknown`` without these metrics.

    Below 1 MiB ``tiny``, below 32 MiB (about a last-level cache) ``small``, below 512 MiB ``medium``, else ``large``.
    """
    share, duration = metric(profile, DRAM), metric(profile, DURATION_NS)
    if share is None or duration is None or device.dram_gb_s is None:
        return "unknown"
    mebibytes = share / 100.0 * device.dram_gb_s * duration / 2**20
    for limit, name in ((1.0, "tiny"), (32.0, "small"), (512.0, "medium")):
        if mebibytes < limit:
            return name
    return "large"


def _busiest(profile: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    values = [profile[name] for name in names if name in profile]
    return max(values, default=None)


CLASSES = {
    "missing_header": r"fatal error: .*(?:no such file|not found)|cannot open (?:source|include) file",
    "undefined_name": (
        r"undeclared|was not declared|is undefined|is not defined|has no member|"
        r"has no attribute|undefined (?:name|variable)"
    ),
    "link_error": r"undefined (?:reference|symbol)|multiple definition|unresolved external|ld returned",
    "binding_mismatch": (
        r"incompatible function arguments|takes no keyword|unexpected keyword|"
        r"positional argument|pybind|no matching function|too (?:few|many) arguments|"
        r"missing \d+ required"
    ),
    "type_mismatch": (
        r"cannot convert|incompatible type|no suitable (?:conversion|constructor)|"
        r"no operator|invalid conversion|expected .* dtype|expected scalar type|"
        r"dtype mismatch|invalid operands"
    ),
    "syntax_error": (
        r"syntax ?error|invalid syntax|expected (?:a|an|'|\x22)|unexpected (?:token|indent|eof)|unterminated"
        r"unterminated"
    ),
    "out_of_shared_memory": (
        r"too much shared data|shared memory.*(?:exceed|out of|too)|out of resource.*shared|"
        r"uses too much shared"
    ),
    "out_of_memory": r"out of memory|cudaerrormemoryallocation|oom\b",
    "register_limit": r"too many resources requested|register.*(?:exceed|limit)",
    "illegal_access": (
        r"illegal memory access|misaligned address|out[- ]of[- ]bounds|"
        r"segmentation fault|segfault|sigsegv|invalid device pointer"
    ),
    "launch_config": (
        r"invalid configuration|invalid argument|launch fail|no kernel image|"
        r"invalid device function"
    ),
    "device_mismatch": (
        r"expected all tensors to be on the same device|must be a cuda tensor|"
        r"expected .* (?:cuda|cpu) tensor"
    ),
    "shape_mismatch": r"shape|size mismatch|dimension|broadcast|must match the size",
    "not_finite": r"\bnan\b|\binf\b|not finite",
    "deadlock_or_timeout": r"time[d ]*[- ]?out|deadlock|hang",
    "numerical_mismatch": r"mismatch|incorrect|not close|max_(?:abs|rel)_err|max difference|wrong",
    "build_tool": r"ninja|error building extension|nvcc|build ?error|importerror|modulenotfound",
}
"""Class → pattern; the first that matches wins."""

_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in CLASSES.items())
_DEFAULTS = {
    Outcome.COMPILE_ERROR: "other_compile_error",
    Outcome.RUNTIME_ERROR: "other_runtime_error",
    Outcome.WRONG_RESULT: "numerical_mismatch",
    Outcome.TIMEOUT: "deadlock_or_timeout",
    Outcome.REJECTED: "rejected_by_guard",
    Outcome.INFRA_ERROR: "infrastructure",
}
_COMMAND = re.compile(
    r"^(?:FAILED:|ninja:|/\S+(?:nvcc|c\+\+|g\+\+)\b)|\[\d+/\d+\]|^\s*File \"|^Traceback\b|Warning: |^\^|^~"
)
"""Lines of a build log or traceback that say where and not what."""
_VERDICT = re.compile(
    r"^(?:[\w ]+(?:failed|kernel is incorrect|error building extension[^:]*)\s*[:.]\s*|(?:[A-Z]+_)+[A-Z]+\s*:\s*)+",
    re.IGNORECASE,
)
"""What a harness puts in front of the reason, or says instead of one."""
_NAMING = re.compile(
    r"\b(?:fatal )?error\b\s*:|\w(?:Error|Exception)\b\s*:|mismatch|exceed|illegal|invalid|undefined", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/(?=[\w.+-])")
_FIXED = frozenset({Outcome.TIMEOUT, Outcome.REJECTED, Outcome.INFRA_ERROR})
_COMPILE_ONLY = frozenset({"missing_header", "undefined_name", "link_error", "syntax_error", "build_tool"})


def reason(error: str, longest: int) -> str:
    """The line of an error message that says what is wrong, without paths, cut at ``longest`` characters.

    The last line that names an error, else the first that is no command and no bare verdict, else the first.
    """
    lines = [line.strip() for line in error[:20_000].splitlines() if line.strip()]
    naming = next((line for line in map(_said, reversed(lines)) if line and _NAMING.search(line)), "")
    said = naming or next(filter(None, map(_said, lines)), "")
    return (said or (lines[0] if lines else ""))[:longest].strip()


def _said(line: str) -> str:
    """What a line says, without paths and verdicts; empty when that is nothing."""
    if _COMMAND.search(line):
        return ""
    said = _PATH.sub("", _VERDICT.sub("", line)).strip(" |")
    return said if len(said) > 3 else ""


def says_why(line: str) -> bool:
    """Whether a :func:`reason` is more than the bare verdict of a harness or a command."""
    return len(_VERDICT.sub("", line)) > 3 and not _COMMAND.search(line) and line != "failed without a message"


def error_class(outcome: Outcome, error: str) -> str:
    """Class of a failure; empty for a correct step."""
    if outcome is Outcome.CORRECT:
        return ""
    if outcome in _FIXED:
        return _DEFAULTS[outcome]
    for name, pattern in _PATTERNS:
        if outcome is Outcome.WRONG_RESULT and name in _COMPILE_ONLY:
            continue  # a build log in front of a numerical verdict explains nothing
        if pattern.search(error[:20_000]):
            return name
    return _DEFAULTS[outcome]
