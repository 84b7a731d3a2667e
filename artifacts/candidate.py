"""Candidates: source files that define ``ModelNew``."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from enum import StrEnum


class Language(StrEnum):
    """What a candidate's kernels are written in; ``torch`` means that it has none of its own."""

    CUDA = "cuda"
    TRITON = "triton"
    CPP = "cpp"
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
