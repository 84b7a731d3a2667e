"""What a rebuild changed in a memory, for a terminal, a program and the report of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from artifacts.codec import encode
from artifacts.memory.diff import LevelDiff, MemoryDiff, Moved, diff
from artifacts.memory.htg import Memory
from pipeline.report.memory_view import ratio

MOST = 5
"""Effects that are named of those that moved within their intervals."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change in words: ``kind`` is appeared, vanished, split, merged, renamed, moved, shifted, edited or such."""

    level: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a rebuild changed: the headline and every change."""

    headline: str
    changes: tuple[Change, ...]
    found: MemoryDiff

    def text(self) -> str:
        """For a terminal."""
        return "\n".join([self.headline, *(f"  {item.level} {item.kind}: {item.text}" for item in self.changes)])

    def json(self) -> str:
        """For a program."""
        return json.dumps(encode(self.found), indent=1)


def lesson_of(old: Memory, new: Memory) -> Lesson:
    """Compare two memories."""
    found = diff(old, new)
    return Lesson(headline=headline(found), changes=tuple(changes(found, old, new)), found=found)


def headline(found: MemoryDiff) -> str:
    """Both references and what came and went."""
    if found.before == found.after:
        return f"{found.before} is {found.after}: the same version"
    moved = f"{found.transitions_added:,} transitions added, {found.transitions_removed:,} removed"
    parts = ", ".join(f"{name} {count:,}" for name, count in found.fields_changed)
    return f"{found.before} → {found.after}: {moved}, {found.transitions_changed:,} changed{parts and f' ({parts})'}"


def changes(found: MemoryDiff, old: Memory, new: Memory) -> list[Change]:
    """Every change, directions before strategies, then the replay figures."""
    names = names_of(old) | names_of(new)
    listed = [*_level("direction", found.directions, names), *_level("strategy", found.strategies, names)]
    listed += [Change("edge", "moved", _moved(item)) for item in found.edges]
    for kind, names_ in (("appeared", found.edges_added), ("vanished", found.edges_removed)):
        if names_:
            more = f" and {len(names_) - MOST} more" if len(names_) > MOST else ""
            listed.append(Change("edge", kind, f"{', '.join(names_[:MOST])}{more}"))
    made = [Change("memory", "made otherwise", ", ".join(found.made_otherwise))] if found.made_otherwise else []
    return [*listed, *(Change("replay", "moved", line) for line in found.quality), *made]


def names_of(memory: Memory) -> dict[str, str]:
    """Names of directions and strategies by id."""
    names = {direction.direction_id: direction.name for direction in memory.directions}
    return names | {strategy.strategy_id: strategy.name for strategy in memory.strategies}


def _level(level: str, found: LevelDiff, names: Mapping[str, str]) -> list[Change]:
    def named(*ids: str) -> str:
        return ", ".join(names.get(item, item) for item in ids)

    return [
        *(Change(level, "appeared", named(item)) for item in found.appeared),
        *(Change(level, "vanished", named(item)) for item in found.vanished),
        *(Change(level, "split", f"{named(item)} → {named(*parts)}") for item, parts in found.split),
        *(Change(level, "merged", f"{named(*parts)} → {named(item)}") for item, parts in found.merged),
        *(Change(level, "renamed", f"{named(a)} → {named(b)}") for a, b in found.renamed if named(a) != named(b)),
        *(Change(level, "moved", _moved(item)) for item in found.moved),
        *_within(level, found.shifted),
        *(Change(level, "edited", f"{named(item)}: {', '.join(fields)}") for item, fields in found.edited),
    ]


def _within(level: str, found: Sequence[Moved]) -> list[Change]:
    if not found:
        return []
    furthest = "; ".join(_moved(item) for item in found[:MOST])
    return [Change(level, "shifted", f"{len(found)} within their intervals, furthest: {furthest}")]


def _moved(item: Moved) -> str:
    return f"{item.name}: {ratio(item.before):.2f}× → {ratio(item.after):.2f}×"
