"""What cured failures like this one before, from the memory's own transitions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from artifacts.measurement import Outcome
from artifacts.memory.edges import cures_of
from artifacts.memory.htg import Memory

_WORD = re.compile(r"[A-Za-z_]{3,}")
LEAST_LIKENESS = 0.2
"""Share of words in common below which two failures are not alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """An earlier failure of the same class and what cured it; ``source`` is the transition that cured it."""

    error: str
    cure: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    outcome: str
    words: frozenset[str]
    fix: Fix


class KnownFixes:
    """Failures of a memory whose next step was correct, with what that step did."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def like(self, outcome: Outcome, error: str, limit: int = 3) -> tuple[Fix, ...]:
        """Fixes of failures with the same outcome and a similar error text, the most similar first."""
        words = words_of(error)
        scored = [(_likeness(words, known.words), known.fix) for known in self._known if known.outcome == outcome.value]
        near = [(score, fix) for score, fix in scored if score >= LEAST_LIKENESS]
        near.sort(key=lambda item: (-item[0], item[1].cure))
        distinct = {(fix.error, fix.cure): fix for _, fix in reversed(near)}
        return tuple(reversed(distinct.values()))[:limit]

    @cached_property
    def _known(self) -> tuple[_Known, ...]:
        table, failed = self._memory.table, np.flatnonzero(self._memory.columns.failed)
        texts = table.select(["transition_id", "outcome", "child_sha256", "error", "plan"])
        before = {row["child_sha256"]: row for row in texts.take(pa.array(failed)).to_pylist()}
        pairs = [(row, before[child]) for child, rows in cures_of(table, failed).items() for row in rows]
        cures = texts.take(pa.array([row for row, _ in pairs], pa.int64())).to_pylist()
        return tuple(
            _Known(
                lost["outcome"],
                words_of(lost["error"]),
                Fix(error=lost["error"], cure=cure["plan"], source=cure["transition_id"]),
            )
            for (_, lost), cure in zip(pairs, cures, strict=True)
            if lost["error"] and cure["plan"]
        )


def words_of(error: str) -> frozenset[str]:
    """Words of an error text, without numbers and punctuation."""
    return frozenset(word.lower() for word in _WORD.findall(error[:4000]))


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    either = one | other
    return len(one & other) / len(either) if either else 0.0
