"""Code features and language of one source, cached by its hash."""

from __future__ import annotations

import functools
from collections import Counter
from typing import NamedTuple

from artifacts.candidate import Language
from artifacts.features.python_rules import torch_features, torch_op_feature, triton_features
from artifacts.features.record import CodeFeatures
from artifacts.features.source import SourceParts, take_apart
from artifacts.features.structure import read_structure
from artifacts.features.tokens import token_features, torch_calls


def code_features(code: str) -> CodeFeatures:
    """Features of ``code``, in whatever of the four languages it is; never raises on garbage.

    CUDA and C++ are read with tree-sitter, also inside Python string literals; Triton and torch with the Python
    syntax tree, or by patterns where it does not parse. Only the first 200,000 characters are looked at.
    """
    return _read(code).features


def detect_language(code: str) -> Language:
    """Language of the kernels in ``code``: CUDA before Triton before C++; torch when it has none of its own."""
    return _read(code).language


class _Reading(NamedTuple):
    features: CodeFeatures
    language: Language


@functools.lru_cache(maxsize=8192)
def _read(code: str) -> _Reading:
    """Both answers of one parse: who asks for the language of a source asks for its features next."""
    parts = take_apart(code)
    return _Reading(_features(parts), _language(parts))


def _features(parts: SourceParts) -> CodeFeatures:
    counts: Counter[str] = Counter()
    kernels: list[str] = []
    for text in parts.kernels:
        structure = read_structure(text)
        counts.update(structure.counts)
        counts.update(token_features(structure.text))
        kernels.extend(structure.kernels)
        for op in torch_calls(structure.text):
            feature = torch_op_feature(op)
            if feature is not None:
                counts[feature] += 1
    facts = parts.facts
    counts.update(triton_features(facts))
    counts.update(torch_features(facts))
    kernels.extend(facts.kernels)
    counts["fast_math"] += sum("fast_math" in flag or "ffast-math" in flag for flag in facts.literals if len(flag) < 60)
    if len(kernels) > 1:
        counts["multiple_kernels"] = len(kernels)
    present = {name: count for name, count in sorted(counts.items()) if count > 0}
    return CodeFeatures(counts=present, kernels=tuple(kernels), complete=parts.complete)


def _language(parts: SourceParts) -> Language:
    if any("__global__" in text or "<<<" in text for text in parts.kernels):
        return Language.CUDA
    facts = parts.facts
    if facts.kernels or "triton.jit" in facts.names:
        return Language.TRITON
    return Language.CPP if parts.kernels else Language.TORCH
