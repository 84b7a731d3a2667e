"""What cured failures like this one before, from the memory's own transitions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.measurement import Outcome
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
        table = self._memory.table.select(
            ["transition_id", "outcome", "parent_sha256", "child_sha256", "error", "plan"]
        )
        correct = pc.equal(table["outcome"].cast(pa.string()), Outcome.CORRECT.value)
        failed = {
            row["child_sha256"]: row for row in table.filter(pc.invert(correct)).to_pylist() if row["child_sha256"]
        }
        cured = table.filter(
            pc.and_(correct, pc.is_in(table["parent_sha256"].cast(pa.string()), pa.array(failed, pa.string())))
        )
        pairs = ((failed[row["parent_sha256"]], row) for row in cured.to_pylist())
        return tuple(
            _Known(
                before["outcome"],
                words_of(before["error"]),
                Fix(error=before["error"], cure=row["plan"], source=row["transition_id"]),
            )
            for before, row in pairs
            if before["error"] and row["plan"]
        )


def words_of(error: str) -> frozenset[str]:
    """Words of an error text, without numbers and punctuation."""
    return frozenset(word.lower() for word in _WORD.findall(error[:4000]))


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    either = one | other
    return len(one & other) / len(either) if either else 0.0
