"""Classes of failures, from the outcome and the words of an error message."""

from __future__ import annotations

import re

from artifacts.outcome import Outcome

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
