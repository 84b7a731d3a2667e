"""Code features and language of one source: taken apart once, cached by its text."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from artifacts.candidate import Language, syntax_tree
from artifacts.features.python_facts import PythonFacts, read_text, read_tree
from artifacts.features.python_rules import TORCH_OPS, torch_features, triton_features
from artifacts.features.structure import read_structure
from artifacts.features.table import CodeFeatures
from artifacts.features.tokens import token_features, torch_calls

LIMIT = 200_000
"""Characters looked at; the longest of 2,402 published kernels has 37,000, hostile input more."""
LONGEST_LINE = 5_000
"""Characters of a line looked at by patterns, which take the square of what never ends."""
_MOST_BRACES = 20_000
"""Open braces beyond which Python is not parsed: the parser takes the square of an f-string's fields."""

_C_WORDS = ("__global__", "torch::", "__device__", "PYBIND11_MODULE", "#pragma")
_C_MARKS = tuple(re.compile(mark) for mark in (r"#\s*include", r"at::(?<!\wat::)", r"void(?<!\wvoid)\s+\w+\s*\("))
"""Beginning with plain text, by which ``re`` finds the few places worth a closer look."""
_FENCE = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TRIPLE = re.compile(r'"""(.*?)(?:"""|\Z)|' + r"'''(.*?)(?:'''|\Z)", re.DOTALL)
_PYTHON = re.compile(r"^[ \t]*(?:import |from \w[\w.]* import |def |class |@)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParts:
    """One source taken apart.

    Attributes:
        facts: what the Python side calls; empty for a plain C-family file.
        kernels: C-family text, one entry a string literal or file.
    """

    facts: PythonFacts
    kernels: tuple[str, ...]


def is_c_family(text: str) -> bool:
    """Whether ``text``, a file or a string literal, looks like C, C++ or CUDA."""
    return len(text) > 20 and _has_c_marks(text)


def _has_c_marks(text: str) -> bool:
    return any(word in text for word in _C_WORDS) or any(mark.search(text) for mark in _C_MARKS)


def is_python(text: str) -> bool:
    """Whether some line of ``text`` begins as Python does and C does not."""
    return _PYTHON.search(text) is not None


@functools.lru_cache(maxsize=64)
def take_apart(code: str) -> SourceParts:
    """Split ``code``; never raises, whatever the text is."""
    text = _unfenced(code[:LIMIT].replace("\x00", " "))
    if not _PYTHON.search(text) and _has_c_marks(text):
        return SourceParts(facts=PythonFacts(), kernels=(text,))
    tree = parse_python(text)
    if tree is not None:
        facts = read_tree(tree)
        kernels = tuple(value for value in facts.literals if is_c_family(value))
        return SourceParts(facts=facts, kernels=kernels)
    if _has_c_marks(text) and '"""' not in text and "'''" not in text:
        return SourceParts(facts=PythonFacts(), kernels=(text,))
    blocks = (first or second for first, second in _TRIPLE.findall(text))
    kernels = tuple(block for block in blocks if _has_c_marks(block))
    return SourceParts(facts=read_text(short_lines(_TRIPLE.sub(" ", text))), kernels=kernels)


def parse_python(text: str) -> ast.Module | None:
    """Parse Python; None when it does not parse (also for nesting beyond the parser's limits)."""
    if text.count("{") > _MOST_BRACES:
        return None
    try:
        return syntax_tree(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def short_lines(text: str, most: int = LONGEST_LINE) -> str:
    """``text`` with its lines cut to ``most`` characters."""
    if len(text) <= most:
        return text
    return "\n".join(line[:most] for line in text.split("\n"))


def _unfenced(text: str) -> str:
    if "```" not in text:
        return text
    blocks: list[str] = _FENCE.findall(text)
    return max(blocks, key=len) if blocks else text


def code_features(code: str) -> CodeFeatures:
    """Features of ``code``, in whatever of the four languages it is; never raises on garbage.

    CUDA and C++ are read with tree-sitter, also inside Python string literals; Triton and torch with the Python
    syntax tree, or by patterns where it does not parse. Only the first 200,000 characters are looked at.
    """
    return _read(code).features


def detect_language(code: str) -> Language:
    """Language of the kernels in ``code``: CUDA before Triton, Numba and C++; torch when it has none of its own."""
    return _read(code).language


class _Reading(NamedTuple):
    features: CodeFeatures
    language: Language


@functools.lru_cache(maxsize=8192)
def _read(code: str) -> _Reading:
    """Both answers of one parse: who asks for the language of a source asks for its features next."""
    parts = take_apart(code)
    return _Reading(_features(parts), _language(parts, code))


def _features(parts: SourceParts) -> CodeFeatures:
    counts: Counter[str] = Counter()
    facts = parts.facts
    kernels = facts.kernels
    for text in parts.kernels:
        found, own = _c_family_features(text)
        counts.update(found)
        kernels += own
    counts.update(triton_features(facts))
    counts.update(torch_features(facts))
    counts["fast_math"] += sum("fast_math" in flag or "ffast-math" in flag for flag in facts.literals if len(flag) < 60)
    if kernels > 1:
        counts["multiple_kernels"] = kernels
    return CodeFeatures({name: count for name, count in sorted(counts.items()) if count > 0})


@functools.lru_cache(maxsize=1024)
def _c_family_features(text: str) -> tuple[Counter[str], int]:
    """Features of one C-family text and its number of kernels; versions of one source share most of their texts."""
    structure = read_structure(text)
    counts = structure.counts + token_features(structure.text)
    counts.update(TORCH_OPS[op] for op in torch_calls(structure.text) if op in TORCH_OPS)
    return counts, structure.kernels


_NUMBA = re.compile(r"^@(?:\w+\.)?njit\b", re.MULTILINE)


def _language(parts: SourceParts, code: str) -> Language:
    if any("__global__" in text or "<<<" in text for text in parts.kernels):
        return Language.CUDA
    facts = parts.facts
    if facts.kernels or "triton.jit" in facts.names:
        return Language.TRITON
    if _NUMBA.search(code):
        return Language.NUMBA
    return Language.CPP if parts.kernels else Language.TORCH
