"""Directions and strategies put on drafts, and the histories that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from artifacts.errors import HtamError
from artifacts.memory.canonical import canonical
from artifacts.memory.schemas import TRANSITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Name and one-line description of a direction or strategy."""

    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What clustering said of the drafts, row by row; an empty id is noise.

    Attributes:
        directions, strategies: what the ids stand for; every id in use is named.
        parents: strategy id to its direction id.
        resources: direction id to the resource it relieves, where it relieves one.
    """

    direction_ids: Sequence[str]
    strategy_ids: Sequence[str]
    directions: Mapping[str, Named]
    strategies: Mapping[str, Named]
    parents: Mapping[str, str]
    resources: Mapping[str, str]

    def __post_init__(self) -> None:
        if len(self.direction_ids) != len(self.strategy_ids):
            raise ValueError("every row needs a direction and a strategy, empty for noise")
        unnamed = {*self.direction_ids} - {"", *self.directions} or {*self.strategy_ids} - {"", *self.strategies}
        if unnamed:
            raise ValueError(f"{min(unnamed)!r} is used and not named")
        if any(" " in name for name in self.directions):
            raise ValueError("direction ids must not hold blanks, histories are separated by them")


def labelled(drafts: pa.Table, labels: Labels) -> pa.Table:
    """Transitions of ``drafts`` with directions, strategies and histories, as a canonical table.

    Raises:
        HtamError: two logs hold different transitions of the same id.
    """
    identities = drafts["transition_id"].to_pylist()
    if len(set(identities)) != len(identities):
        repeated, _ = Counter(identities).most_common(1)[0]
        raise HtamError(f"transition {repeated!r} comes from two logs", "give each collection a name of its own")
    histories = lineages(identities, drafts["previous"].to_pylist(), labels.direction_ids)
    changed = {
        "direction_id": list(labels.direction_ids),
        "strategy_id": list(labels.strategy_ids),
        "state_history": histories,
    }
    columns = [
        pa.array(changed[field.name], pa.string()).cast(field.type) if field.name in changed else drafts[field.name]
        for field in TRANSITIONS
    ]
    return canonical(pa.table(columns, schema=TRANSITIONS))


def lineages(identities: Sequence[str], previous: Sequence[str], direction_ids: Sequence[str]) -> list[str]:
    """Directions taken on the way to each row's parent, oldest first and separated by blanks; noise is left out."""
    position = {name: row for row, name in enumerate(identities)}
    through: dict[int, str] = {}
    before: list[str] = []
    for row in range(len(identities)):
        chain: list[int] = []
        at: int | None = position.get(previous[row])
        while at is not None and at not in through:
            chain.append(at)
            at = position.get(previous[at])
        path = through[at] if at is not None else ""
        for link in reversed(chain):
            path = f"{path} {direction_ids[link]}".strip()
            through[link] = path
        parent = position.get(previous[row])
        before.append("" if parent is None else through[parent])
    return before
