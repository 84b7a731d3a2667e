"""Risks of a strategy: what its failures say one cannot do."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from builder.describe.failure import says_why

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
"""What a failure of a class says (see :mod:`builder.describe.failure`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed transition of a strategy."""

    transition_id: str
    outcome: str
    error_class: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
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
