"""What changed between two memories: directions and strategies that came, went, split or merged; effects that moved.

Ids are compared by the transitions they hold, not by their names, because a rebuild may name the same thing anew.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import moved
from artifacts.memory.records import Direction, Edge, Effect, Strategy
from artifacts.memory.schemas import plain

MADE = ("settings", "scorer", "embedding", "inputs", "quarantined", "expectation")
LEAST = 0.001
"""Log2 gain by which a mean must differ to be called another."""
COMPARED_OTHERWISE = ("direction_id", "strategy_id", "effect", "evidence")
SHARE = 0.2
"""Part of a group's common transitions that must go to another for the two to be linked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An effect whose new mean lies outside its old interval, or the reverse."""

    identity: str
    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDiff:
    """Changes of the directions, or of the strategies.

    Attributes:
        appeared, vanished: ids that have no counterpart on the other side.
        split: old id to the new ids that its transitions went to.
        merged: new id to the old ids that it was made of.
        renamed: (old id, new id) of counterparts under another id.
        moved: effects that left their intervals; ``shifted``: the others whose mean is another, the furthest first.
        edited: new id of a counterpart to its fields that are others: texts, conditions, risks.
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    split: tuple[tuple[str, tuple[str, ...]], ...]
    merged: tuple[tuple[str, tuple[str, ...]], ...]
    renamed: tuple[tuple[str, str], ...]
    moved: tuple[Moved, ...]
    shifted: tuple[Moved, ...] = ()
    edited: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDiff:
    """Differences of two memories.

    Attributes:
        transitions_changed: transitions of both whose rows differ; ``fields_changed``: in what, and in how many.
        made_otherwise: entries of the manifest that differ: settings, encoder, inputs and so on.
        edges: edges whose effect left its interval, by name; ``edges_added`` and ``edges_removed`` have no counterpart.
        quality: replay figures that differ, a line a level.
    """

    before: str
    after: str
    transitions_added: int
    transitions_removed: int
    transitions_changed: int
    fields_changed: tuple[tuple[str, int], ...]
    made_otherwise: tuple[str, ...]
    directions: LevelDiff
    strategies: LevelDiff
    edges: tuple[Moved, ...]
    edges_added: tuple[str, ...]
    edges_removed: tuple[str, ...]
    quality: tuple[str, ...]


def diff(before: Memory, after: Memory) -> MemoryDiff:
    """Compare two memories."""
    old_ids, new_ids = before.table["transition_id"], after.table["transition_id"]
    place = pc.index_in(old_ids.combine_chunks(), value_set=new_ids.combine_chunks())
    common = int(len(place) - place.null_count)
    old_edges, new_edges = ({_edge_name(edge): edge for edge in memory.edges} for memory in (before, after))
    changed = _changed(before.table.filter(place.is_valid()), after.table.take(place.drop_null()))
    return MemoryDiff(
        before=before.reference,
        after=after.reference,
        transitions_added=len(after) - common,
        transitions_removed=len(before) - common,
        transitions_changed=int(np.logical_or.reduce(list(changed.values())).sum()) if changed else 0,
        fields_changed=tuple((name, int(rows.sum())) for name, rows in sorted(changed.items())),
        made_otherwise=tuple(name for name in MADE if getattr(before.manifest, name) != getattr(after.manifest, name)),
        directions=_level(before.directions, after.directions, _flows(before, after, place, "direction")),
        strategies=_level(before.strategies, after.strategies, _flows(before, after, place, "strategy")),
        edges=tuple(
            Moved(identity=name, name=name, before=old_edges[name].effect.mean, after=edge.effect.mean)
            for name, edge in sorted(new_edges.items())
            if name in old_edges and _left(old_edges[name].effect, edge.effect)
        ),
        edges_added=tuple(sorted(new_edges.keys() - old_edges.keys())),
        edges_removed=tuple(sorted(old_edges.keys() - new_edges.keys())),
        quality=moved(before.manifest, after.manifest),
    )


def _edge_name(edge: Edge) -> str:
    where = " ".join(text for text in (edge.arch, edge.bound, edge.family) if text)
    return f"{edge.move} from {edge.rung}" + (f" ({where})" if where else "")


def _changed(before: pa.Table, after: pa.Table) -> dict[str, Bools]:
    """Field to the rows in which it differs; what a state holds, and where a row comes from, is one field each."""
    found: dict[str, Bools] = {}
    before, after = plain(before), plain(after)
    for name in before.column_names:
        rows = _differ(before[name], after[name])
        if rows.any():
            field = name.split("_")[0] if name.startswith(("state_", "provenance_")) else name
            found[field] = found[field] | rows if field in found else rows
    return found


def _differ(before: pa.ChunkedArray, after: pa.ChunkedArray) -> Bools:
    # Null where either is: equal only where both are.
    same = pc.fill_null(pc.equal(before, after), False)
    both_null = pc.and_(pc.is_null(before, nan_is_null=True), pc.is_null(after, nan_is_null=True))
    rows: Bools = ~np.asarray(pc.or_(same, both_null)).astype(np.bool_)
    return rows


def _flows(before: Memory, after: Memory, place: pa.Array, level: str) -> npt.NDArray[np.int64]:
    """Transitions shared by old group i and new group j, shape [old, new]."""
    old, new = getattr(before.columns, level), getattr(after.columns, level)
    shared = np.asarray(place.is_valid())
    source = old.values[shared]
    target = new.values[np.asarray(place.drop_null(), np.int64)]
    flows = np.zeros((len(old.names), len(new.names)), np.int64)
    both = (source >= 0) & (target >= 0)
    np.add.at(flows, (source[both], target[both]), 1)
    return flows


_Nodes = tuple[Direction, ...] | tuple[Strategy, ...]


def _level(before: _Nodes, after: _Nodes, flows: npt.NDArray[np.int64]) -> LevelDiff:
    old, new = [_identity(node) for node in before], [_identity(node) for node in after]
    out_share = flows / np.maximum(flows.sum(axis=1, keepdims=True), 1) if flows.size else flows.astype(float)
    in_share = flows / np.maximum(flows.sum(axis=0, keepdims=True), 1) if flows.size else flows.astype(float)
    parts = {i: tuple(new[j] for j in np.flatnonzero(out_share[i] >= SHARE)) for i in range(len(old))}
    origins = {j: tuple(old[i] for i in np.flatnonzero(in_share[:, j] >= SHARE)) for j in range(len(new))}
    pairs = [
        (i, j) for i in range(len(old)) for j in range(len(new)) if parts[i] == (new[j],) and origins[j] == (old[i],)
    ]
    return LevelDiff(
        appeared=tuple(name for j, name in enumerate(new) if not flows[:, j].any() and name not in old),
        vanished=tuple(name for i, name in enumerate(old) if not flows[i].any() and name not in new),
        split=tuple((old[i], names) for i, names in parts.items() if len(names) > 1),
        merged=tuple((new[j], names) for j, names in origins.items() if len(names) > 1),
        renamed=tuple((old[i], new[j]) for i, j in pairs if old[i] != new[j]),
        moved=tuple(_moved(before[i], after[j]) for i, j in pairs if _left(before[i].effect, after[j].effect)),
        shifted=_shifted([(before[i], after[j]) for i, j in pairs if not _left(before[i].effect, after[j].effect)]),
        edited=tuple((new[j], names) for i, j in pairs if (names := _edited(before[i], after[j]))),
    )


def _shifted(pairs: list[tuple[Direction | Strategy, Direction | Strategy]]) -> tuple[Moved, ...]:
    found = [_moved(old, new) for old, new in pairs if abs(new.effect.mean - old.effect.mean) >= LEAST]
    return tuple(sorted(found, key=lambda item: -abs(item.after - item.before)))


def _edited(before: Direction | Strategy, after: Direction | Strategy) -> tuple[str, ...]:
    names = (field.name for field in fields(before))
    return tuple(
        name for name in names if name not in COMPARED_OTHERWISE and getattr(before, name) != getattr(after, name)
    )


def _identity(node: Direction | Strategy) -> str:
    return node.strategy_id if isinstance(node, Strategy) else node.direction_id


def _left(old: Effect, new: Effect) -> bool:
    """Whether one of two effects lies outside the interval of the other."""
    return old.known and new.known and not (old.low <= new.mean <= old.high and new.low <= old.mean <= new.high)


def _moved(before: Direction | Strategy, after: Direction | Strategy) -> Moved:
    return Moved(identity=_identity(after), name=after.name, before=before.effect.mean, after=after.effect.mean)
