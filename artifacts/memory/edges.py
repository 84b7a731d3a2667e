"""Edges of the graph: what a move gained and how it failed, from the rung it left, by device, bound and family."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.features.techniques import ABOUT, LADDERS, PLAIN, Technique, ladder_of, rung
from artifacts.measurement import Outcome
from artifacts.memory.columns import Bools, Codes, Columns, codes
from artifacts.memory.effects import effects_by
from artifacts.memory.records import Edge, Effect, Excerpt
from artifacts.statistics import LEAST_TASKS
from artifacts.trajectory import State

Ints = npt.NDArray[np.int64]
ANY = -1
PRODUCTS = frozenset({"matmul", "convolution", "attention", "recurrent", "fusion", "moe", "other"})
ROWS = frozenset({"normalization", "softmax", "reduction", "loss", "attention", "fusion", "scan", "other"})
FITS: Mapping[Technique, frozenset[str]] = {
    **dict.fromkeys((*LADDERS["products"], *LADDERS["precision"], Technique.L2_ORDER, Technique.SPLIT_K), PRODUCTS),
    **dict.fromkeys((Technique.SEVERAL_KERNELS, Technique.DEPENDENT_LAUNCH), PRODUCTS | ROWS),
    **dict.fromkeys((Technique.HELD_ROW, Technique.ONE_PASS, Technique.SHARED_REDUCTION, Technique.ATOMICS), ROWS),
    Technique.SCAN: frozenset({"scan", "recurrent"}),
    Technique.TRANSFORM: frozenset({"convolution"}),
    Technique.POLYNOMIAL: ROWS | {"elementwise"},
    Technique.CLUSTER: PRODUCTS | ROWS,
}
"""Operator families for which a technique makes sense; every family where it is not named."""
LEVELS = ((False, False, False), (True, False, False), (True, True, False), (True, False, True), (False, False, True))
"""Which of device, bound and family an edge names; the others are any."""
MOST_CURES = 2
ENOUGH = 5
"""Operators from which a narrower edge is believed before a wider one."""
LONGEST_CURE = 200
CAPABILITY = {"volta": 70, "turing": 75, "ampere": 80, "ada": 89, "hopper": 90, "blackwell": 100}
"""First compute capability, times ten, of each architecture that states name."""


def computed(table: pa.Table, columns: Columns, excerpts: Mapping[str, str]) -> tuple[Edge, ...]:
    """Edges of the transitions in ``table``, sorted; each move of a step counts.

    Steps from a parent without a time are repairs or ratios and tell no effect. Edges that fewer than
    :data:`LEAST_TASKS` operators tell of are left out.

    Args:
        columns: those of ``table``.
        excerpts: transition to a short difference of code that may be shown.
    """
    rows, keys, names = _exploded(table, columns)
    if not len(rows):
        return ()
    found: dict[tuple[int, ...], Edge] = {}
    origins, taken = _Origins.of(table, columns.failed, excerpts), _taken(columns, rows)
    for level in LEVELS:
        used = keys.copy()
        for place, named in enumerate(level, start=2):
            if not named:
                used[:, place] = ANY
        groups, inverse = np.unique(used, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        effects = effects_by(taken, inverse, len(groups))
        order = np.argsort(inverse, kind="stable")
        parts = np.split(rows[order], np.flatnonzero(np.diff(inverse[order])) + 1)
        for key, effect, members in zip(groups, effects, parts, strict=True):
            if len(np.unique(columns.operator.values[members])) >= LEAST_TASKS:
                found[tuple(key.tolist())] = _edge(key, names, effect, members, columns, origins, excerpts)
    return tuple(sorted(found.values(), key=lambda edge: (edge.move, edge.rung, edge.arch, edge.bound, edge.family)))


def _exploded(table: pa.Table, columns: Columns) -> tuple[Ints, Ints, tuple[tuple[str, ...], ...]]:
    """Row, and (move, rung, device, bound, family) as codes, once for each move of each step; and the codes' names."""
    held, made = codes(table["techniques"]), codes(table["moves"])
    arch, bound, family = (columns.categories[name] for name in ("arch", "bottleneck", "family"))
    usable = np.flatnonzero(columns.parent_timed & (made.values >= 0) & (columns.weight > 0))
    number: dict[tuple[str, str], int] = {}
    steps: dict[tuple[int, int], list[int]] = {}
    for pair in {*zip(held.values[usable].tolist(), made.values[usable].tolist(), strict=True)}:
        parent = frozenset(Technique(name) for name in held.names[pair[0]].split())
        steps[pair] = [
            number.setdefault((move, from_rung(move, parent)), len(number)) for move in made.names[pair[1]].split()
        ]
    rows, which = [], []
    for row in usable.tolist():
        for each in steps[int(held.values[row]), int(made.values[row])]:
            rows.append(row)
            which.append(each)
    at, pairs = np.array(rows, np.int64), list(number)
    moves, rungs = tuple(dict.fromkeys(move for move, _ in pairs)), tuple(dict.fromkeys(name for _, name in pairs))
    move = np.array([moves.index(name) for name, _ in pairs], np.int64)
    step = np.array([rungs.index(name) for _, name in pairs], np.int64)
    chosen = np.array(which, np.int64)
    if not len(at):
        return at, np.zeros((0, 5), np.int64), ()
    keys = np.stack([move[chosen], step[chosen], arch.values[at], bound.values[at], family.values[at]], axis=1)
    return at, keys.astype(np.int64), (moves, rungs, arch.names, bound.names, family.names)


def from_rung(move: str, parent: frozenset[Technique]) -> str:
    """The rung of the move's ladder that ``parent`` stands on; for a technique without ladder whether it is held."""
    technique = Technique(move[1:])
    ladder = ladder_of(technique)
    return rung(ladder, parent) if ladder else PLAIN


def _taken(columns: Columns, rows: Ints) -> Columns:
    """The rows of ``columns`` at ``rows``, repeated where they are; effects look at no category or number of states."""

    def take(value: Any) -> Any:
        if isinstance(value, Codes):
            return Codes(value.names, value.values[rows])
        return value[rows] if isinstance(value, np.ndarray) else value

    return replace(columns, **{field.name: take(getattr(columns, field.name)) for field in fields(columns)})


@dataclass(frozen=True, slots=True)
class _Origins:
    """What edges say beside figures: outcomes and devices of rows, which may be shown, and what mended a failed child.

    Looked up for few rows, so that a million of them never become Python objects.
    """

    outcome: Codes
    device: Codes
    shown: Mapping[int, str]
    cures: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, table: pa.Table, failed: Bools, excerpts: Mapping[str, str]) -> _Origins:
        ids = table["transition_id"].combine_chunks()
        places = pc.index_in(pa.array(sorted(excerpts), ids.type), value_set=ids)
        shown = {row: name for row, name in zip(places.to_pylist(), sorted(excerpts), strict=True) if row is not None}
        return cls(codes(table["outcome"]), codes(table["device"]), shown, _mended(table, failed))


def _mended(table: pa.Table, failed: Bools) -> dict[int, tuple[str, ...]]:
    """Row of a failed child to the plans of the steps that mended it."""
    lost = np.flatnonzero(failed)
    cures = cures_of(table, lost)
    rows = [row for mending in cures.values() for row in mending]
    plans = dict(zip(rows, table["plan"].take(pa.array(rows, pa.int64())).to_pylist(), strict=True))
    told = {child: tuple(" ".join(plans[row].split())[:LONGEST_CURE] for row in cures[child]) for child in cures}
    children = table["child_sha256"].take(pa.array(lost)).to_pylist()
    return {row: told[child] for row, child in zip(lost.tolist(), children, strict=True) if child in told}


def cures_of(table: pa.Table, failed: Ints) -> dict[str, tuple[int, ...]]:
    """Source of each failed child at the rows ``failed`` to the rows of the correct steps that were made from it.

    What nobody mended, and a child without a source, is left out.
    """
    parents, outcome = table["parent_sha256"], codes(table["outcome"])
    children = [child for child in table["child_sha256"].take(pa.array(failed)).to_pylist() if child]
    made_from = np.asarray(pc.is_in(parents, value_set=pa.array(children, parents.type)))
    mending = np.flatnonzero(made_from & (outcome.values == outcome.code(Outcome.CORRECT.value)))
    rows: dict[str, list[int]] = defaultdict(list)
    for row, parent in zip(mending.tolist(), parents.take(pa.array(mending)).to_pylist(), strict=True):
        rows[parent].append(row)
    return {child: tuple(found) for child, found in rows.items()}


def _edge(
    key: npt.NDArray[np.int64],
    names: Sequence[tuple[str, ...]],
    effect: Effect,
    members: Ints,
    columns: Columns,
    origins: _Origins,
    excerpts: Mapping[str, str],
) -> Edge:
    move, step, arch, bound, family = (names[i][code] if code != ANY else "" for i, code in enumerate(key.tolist()))
    failed = members[columns.failed[members]]
    kinds = Counter(origins.outcome.names[code] for code in origins.outcome.values[failed].tolist())
    devices = {origins.device.names[code] for code in np.unique(origins.device.values[members]).tolist()}
    cures = dict.fromkeys(plan for row in failed.tolist() for plan in origins.cures.get(row, ()) if plan)
    shown = origins.shown.keys() & set(members.tolist()) if origins.shown else ()
    best = max(shown, key=lambda row: (columns.reward[row], origins.shown[row]), default=None)
    return Edge(
        move=move,
        rung=step,
        arch=arch,
        bound=bound,
        family=family,
        effect=effect,
        attempts=len(members),
        operators=len(np.unique(columns.operator.values[members])),
        sources=len(np.unique(columns.source.values[members])),
        devices=tuple(sorted(devices - {""})),
        failures=tuple(f"{count} {kind}" for kind, count in kinds.most_common()),
        cures=tuple(cures)[:MOST_CURES],
        excerpt=None if best is None else _excerpt(origins.shown[best], excerpts, float(columns.reward[best])),
    )


def _excerpt(identity: str, excerpts: Mapping[str, str], gain: float) -> Excerpt:
    return Excerpt(text=excerpts[identity], transition_id=identity, gain=round(gain, 4))


def applicable(move: str, held: frozenset[Technique], arch: str) -> bool:
    """Whether ``move`` can be made from a kernel with ``held`` on a device: something to gain, or to give up.

    A rung at or below the one held is no gain; what the device cannot do is none either.
    """
    technique = Technique(move[1:])
    if move.startswith("-"):
        return technique in held
    needs = ABOUT[technique].needs
    on_cpu = arch == "cpu"
    if technique in held or ((needs == -1) != on_cpu and (needs != 0 or (on_cpu and technique not in _ANYWHERE))):
        return False
    return on_cpu or needs <= _capability(arch)


_ANYWHERE = frozenset(
    {
        Technique.PREFETCH,
        Technique.HELD_ROW,
        Technique.ONE_PASS,
        Technique.POLYNOMIAL,
        Technique.CACHE_POLICY,
        Technique.REGISTER_TILE,
        Technique.TRANSFORM,
    }
)
"""Techniques that CPUs have as well."""


def _capability(arch: str) -> int:
    digits = arch.removeprefix("sm_").rstrip("af")
    return int(digits) if digits.isdigit() else CAPABILITY.get(arch.lower(), 999)


def moves_from(edges: Iterable[Edge], held: frozenset[Technique], state: State) -> tuple[Edge, ...]:
    """For each move that applies, the most telling edge: this device before any, then bound or family named.

    Best first: a gain that is sure, then the mean; edges whose effect is not known stand last.
    """
    best: dict[str, Edge] = {}
    for edge in edges:
        fits = edge.arch in ("", state.arch) and edge.bound in ("", state.bottleneck.value)
        if not fits or edge.family not in ("", state.family) or not applicable(edge.move, held, state.arch):
            continue
        if edge.rung != from_rung(edge.move, held) or not sensible(edge.move, held, state.family):
            continue
        known = best.get(edge.move)
        if known is None or _telling(edge) > _telling(known):
            best[edge.move] = edge
    return tuple(sorted(best.values(), key=lambda edge: (-edge.effect.sign, not edge.effect.known, -edge.effect.mean)))


def sensible(move: str, held: frozenset[Technique], family: str) -> bool:
    """Whether ``move`` makes sense for an operator of ``family``, or the kernel already does things of its kind."""
    technique = Technique(move[1:])
    ladder = LADDERS.get(ladder_of(technique), ())
    return family in FITS.get(technique, (family,)) or not held.isdisjoint(ladder)


def _telling(edge: Edge) -> tuple[bool, bool, bool, int]:
    """Known before unknown, this device before any; a bound or family counts once enough operators tell of it."""
    narrow = bool(edge.family or edge.bound)
    return edge.effect.known, bool(edge.arch), narrow and edge.effect.tasks >= ENOUGH, edge.operators
