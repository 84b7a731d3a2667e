"""Risks of a strategy: what its failures say one cannot do, and in which states it fails more often than elsewhere."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Columns
from artifacts.memory.effects import LEAST_Z, Doubles, candidates, contrast
from artifacts.memory.htg import Memory
from artifacts.memory.records import Condition, Strategy
from builder.describe.evidence import says_why

MOST = 3
FEWEST = 2
"""Failures of one kind before a rule is made of them."""
EVIDENCE = 10
LONGEST_QUOTE = 160
OUTCOMES = {
    "compile_error": "You cannot take for granted that it builds",
    "runtime_error": "You cannot skip bounds and launch checks",
    "wrong_result": "You cannot keep the result right without checking it against the reference",
    "timeout": "You cannot let the work of one launch grow without limit",
    "rejected": "You cannot get a gain here by going around the kernel",
}
"""What a failure says where its class says nothing better."""
CLASSES = {
    "missing_header": "You cannot use a library without its header and include path",
    "undefined_name": "You cannot call what is not declared where it is called, in C++ as in Python",
    "link_error": "You cannot declare a function without defining it exactly once",
    "binding_mismatch": "You cannot change a function's arguments without its binding and its callers",
    "type_mismatch": "You cannot mix pointer, vector and data types without a cast",
    "syntax_error": "You cannot leave the source incomplete or half edited",
    "out_of_shared_memory": "You cannot give a block more shared memory than the device has for it",
    "out_of_memory": "You cannot keep large temporaries: inputs and output nearly fill the device",
    "register_limit": "You cannot launch as many threads with as many registers each",
    "illegal_access": "You cannot read or write beyond a tensor, nor through a pointer that is not aligned to its type",
    "launch_config": "You cannot launch a configuration that the device does not allow",
    "device_mismatch": "You cannot mix tensors of host and device",
    "shape_mismatch": "You cannot change the shape or layout of what is handed on",
    "not_finite": "You cannot drop what keeps the numbers finite",
}
"""What a failure of a class says (see :mod:`builder.describe.evidence`)."""


class Failure(NamedTuple):
    """One failed transition of a strategy."""

    transition_id: str
    outcome: str
    error_class: str
    error: str


class Risk(NamedTuple):
    """A rule in words with the transitions it rests on."""

    words: str
    evidence: tuple[str, ...]


def risks(failures: Sequence[Failure], attempts: int) -> tuple[Risk, ...]:
    """The most frequent kinds of failure among ``attempts``, as rules; one rule of all where no kind came twice."""
    charged = [failure for failure in failures if failure.outcome in OUTCOMES]
    kinds: dict[str, list[Failure]] = defaultdict(list)
    for failure in charged:
        kinds[CLASSES.get(failure.error_class, OUTCOMES[failure.outcome])].append(failure)
    ordered = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    rules = tuple(_risk(rule, cases, attempts) for rule, cases in ordered if len(cases) >= FEWEST)[:MOST]
    return rules or ((_risk("You cannot count on it", charged, attempts),) if len(charged) >= FEWEST else ())


def _risk(rule: str, cases: list[Failure], attempts: int) -> Risk:
    kinds = Counter(_kind(case) for case in cases)
    ended = ", ".join(kind for kind, _ in kinds.most_common(2))
    quoted = Counter(case.error for case in cases if says_why(case.error)).most_common(1)
    said = f", most often: {quoted[0][0][:LONGEST_QUOTE]}" if quoted else ""
    words = f"{rule}: {len(cases)} of {attempts} attempts ended in {ended}{said}"
    return Risk(words=words, evidence=tuple(sorted(case.transition_id for case in cases))[:EVIDENCE])


def _kind(case: Failure) -> str:
    outcome, kind = case.outcome.replace("_", " "), case.error_class.replace("_", " ")
    return f"{outcome} ({kind})" if kind and kind != outcome else outcome


FEWEST_LOST = 5
"""Failures on the worse side."""
FEWEST_IN_HALF = 3

MOST_ROWS = 20_000
"""Transitions of a strategy that are looked at, the first by id; what differs clearly shows in these."""
Rows = npt.NDArray[np.intp]


def with_risky_states(memory: Memory) -> Memory:
    """``memory`` with one more risk for each strategy whose failures gather in some state."""
    columns = memory.columns
    unexpected = columns.failed - _rates(columns)[columns.source.values]
    half = np.array([zlib.crc32(f"half:{name}".encode()) % 2 for name in columns.task.names])[columns.task.values]
    strategies = []
    for code, strategy in enumerate(memory.strategies):
        rows = np.flatnonzero(columns.strategy.values == code)[:MOST_ROWS]
        found = _worst(columns, rows, unexpected, half) if columns.failed[rows].sum() >= FEWEST_LOST else None
        strategies.append(strategy if found is None else _stated(memory, strategy, rows, *found))
    return replace(memory, strategies=tuple(strategies))


def _rates(columns: Columns) -> Doubles:
    """Share of failed steps of each source."""
    count = len(columns.source.names)
    failed = np.bincount(columns.source.values, weights=columns.failed, minlength=count)
    return failed / np.maximum(np.bincount(columns.source.values, minlength=count), 1)


def _worst(
    columns: Columns, rows: Rows, unexpected: Doubles, half: npt.NDArray[np.int_]
) -> tuple[Condition, npt.NDArray[np.bool_]] | None:
    """Predicate on whose side the strategy fails most clearly more often, and the rows there."""
    values, weights = unexpected[rows], columns.weight[rows].astype(np.float64)
    best, strongest = None, LEAST_Z
    for condition, opposite, inside in candidates(columns, rows):
        score = contrast(values, weights, inside)
        if abs(score) <= strongest:
            continue
        side = inside if score > 0 else ~inside
        agreed = all(
            contrast(values[part], weights[part], side[part], FEWEST_IN_HALF) > 0
            for part in (half[rows] == number for number in (0, 1))
        )
        lost = columns.failed[rows]
        # What holds against the sources' rates but not in plain numbers would read like a mistake.
        if agreed and lost[side].sum() >= FEWEST_LOST and lost[side].mean() > lost[~side].mean():
            best, strongest = (condition if score > 0 else opposite, side), abs(score)
    return best


def _stated(
    memory: Memory, strategy: Strategy, rows: Rows, condition: Condition, side: npt.NDArray[np.bool_]
) -> Strategy:
    failed = memory.columns.failed
    there, elsewhere = rows[side], rows[~side]
    lost = there[failed[there]]
    words = (
        f"You cannot count on it where {condition.words}: {len(lost)} of {len(there)} attempts failed there, "
        f"{int(failed[elsewhere].sum())} of {len(elsewhere)} elsewhere"
    )
    evidence = tuple(memory.table["transition_id"].take(lost[:EVIDENCE]).to_pylist())
    return replace(strategy, risks=(words, *strategy.risks), risk_evidence=(evidence, *strategy.risk_evidence))
