"""What runs elsewhere found on operators of the same kind: offered when memory has no direction to give.

A closed gate says that no direction stands out. What was once done to a kernel of this kind, in the words of who did
it and with what it gained, can still be of use to somebody who reads it as that; but only where nothing is known of the
device at hand, see :mod:`optimizer.search.ledger`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from artifacts.memory.htg import Memory
from artifacts.memory.records import Excerpt, Strategy
from artifacts.state import State
from optimizer.applicability import barred, inapplicable
from optimizer.llm.fence import brief
from optimizer.search.cargo import Cargo

MOST = 3
LEAST_GAIN = math.log2(1.05)
MOST_GAIN = math.log2(8)
"""Beyond it the kernel that was replaced teaches nothing about the one at hand."""
LONGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A recipe that gained on an operator of this kind; ``gain`` in log2."""

    name: str
    text: str
    family: str
    arch: str
    gain: float


def notes(memory: Memory, cargo: Cargo, state: State) -> tuple[Note, ...]:
    """At most :data:`MOST` recipes for ``state``, one a strategy: same operator family first, then same device."""
    found = []
    for strategy in memory.strategies:
        if barred(strategy.strategy_id, state) or inapplicable(strategy.direction_id, state):
            continue
        near = [_note(strategy, item, cargo) for item in _telling(strategy, cargo, state)]
        found += sorted(near, key=lambda note: _order(note, state))[:1]
    return tuple(sorted(found, key=lambda note: _order(note, state))[:MOST])


def _telling(strategy: Strategy, cargo: Cargo, state: State) -> list[Excerpt]:
    near = [item for item in cargo.near_first(strategy.recipes, state.family) if LEAST_GAIN <= item.gain <= MOST_GAIN]
    kind = state.arch == "cpu"
    return [item for item in near if (cargo.origin(item)[1] == "cpu") == kind and cargo.worth_reading(item.text)]


def _note(strategy: Strategy, item: Excerpt, cargo: Cargo) -> Note:
    family, arch = cargo.origin(item)
    text = brief(" ".join(item.text.split()), LONGEST)
    return Note(name=strategy.name, text=text, family=family, arch=arch, gain=item.gain)


def _order(note: Note, state: State) -> tuple[bool, bool, float, str]:
    return note.family != state.family, note.arch != state.arch, -note.gain, note.text
