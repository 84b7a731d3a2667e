"""Candidates: source files that define ``ModelNew``; their identity and their syntax trees."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import threading
import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Language(StrEnum):
    """What a candidate's kernels are written in; ``torch`` means that it has none of its own."""

    CUDA = "cuda"
    TRITON = "triton"
    CPP = "cpp"
    NUMBA = "numba"
    TORCH = "torch"


def normalise_source(source: str) -> str:
    """Return ``source`` with line ends, trailing blanks and outer blank lines made uniform."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


@functools.lru_cache(maxsize=8192)
def source_hash(source: str) -> str:
    """SHA-256 (hex) of the normalised source: a candidate's identity."""
    return hashlib.sha256(normalise_source(source).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One source file; equal when the normalised sources are equal."""

    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", normalise_source(self.source))

    @property
    def sha256(self) -> str:
        """Identity of the candidate."""
        return source_hash(self.source)


class _Turns:
    """Whose turn it is to parse; a forked child starts with nobody's."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._anew)

    def _anew(self) -> None:
        self.lock = threading.RLock()


_TURNS = _Turns()


def syntax_tree(source: str) -> ast.Module:
    """Syntax tree of ``source``; what the parser warns of, such as unknown escapes, is the author's business.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as :func:`ast.parse` does.
    """
    with _TURNS.lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def expression_tree(source: str) -> ast.expr:
    """Syntax tree of one expression; raises what :func:`syntax_tree` does."""
    with _TURNS.lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, mode="eval").body


def python_literal(source: str) -> Any:
    """What the Python literal ``source`` spells; raises what :func:`ast.literal_eval` does."""
    with _TURNS.lock:
        return ast.literal_eval(source)
