"""A memory as its page shows it: numbers by direction, strategy, edge, family and device, and its kernels."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.memory.htg import START, Memory
from artifacts.memory.records import Direction, Effect, Strategy, Transition
from artifacts.memory.tables import source_rows, transitions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Experience of taking ``target`` after ``origin``.

    ``n`` measured steps of trust ``weight`` in all, with the trust-weighted mean of their gains in log2.
    """

    origin: str
    target: str
    family: str
    device: str
    n: int
    failures: int
    weight: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """Everything the page of a memory needs.

    Attributes:
        examples: strategy id → its largest gain, largest loss and one failure: what a reader learns most from.
        sources: figures of the log collections.
    """

    reference: str
    directions: tuple[Direction, ...]
    strategies: Mapping[str, list[Strategy]]
    examples: Mapping[str, list[Transition]]
    edges: tuple[Edge, ...]
    families: tuple[tuple[str, int], ...]
    devices: tuple[tuple[str, int], ...]
    sources: list[dict[str, Any]]
    transitions: int
    measured: int
    failures: int


def view(memory: Memory) -> MemoryView:
    """Read ``memory`` once, column by column, and keep what the page shows."""
    measured = int((~np.isnan(memory.columns.reward)).sum())
    return MemoryView(
        reference=memory.reference,
        directions=tuple(sorted(memory.directions, key=lambda item: -item.effect.n)),
        strategies={item.direction_id: by_evidence(memory, item) for item in memory.directions},
        examples=_examples(memory),
        edges=_edges(memory),
        families=_counts(memory.table["family"]),
        devices=_counts(memory.table["device"]),
        sources=_sources(memory),
        transitions=len(memory),
        measured=measured,
        failures=int(memory.columns.failed.sum()),
    )


def _counts(column: pa.ChunkedArray) -> tuple[tuple[str, int], ...]:
    counted = Counter({row["values"] or "unknown": row["counts"] for row in _text(column).value_counts().to_pylist()})
    return tuple(counted.most_common())


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.large_string())


def _sources(memory: Memory) -> list[dict[str, Any]]:
    sums = [("file", "count"), ("transitions", "sum"), ("measured", "sum"), ("failures", "sum")]
    rows: list[dict[str, Any]] = (
        source_rows(memory.table).group_by("source").aggregate(sums).sort_by("source").to_pylist()
    )
    return rows


def _edges(memory: Memory) -> tuple[Edge, ...]:
    columns = memory.columns
    ids = np.array([START, *columns.direction.names])
    measured = ~np.isnan(columns.reward)
    rows = pa.table(
        {
            "origin": ids[columns.previous[:, 0] + 1],
            "target": ids[columns.direction.values + 1],
            "family": _text(memory.table["family"]),
            "device": _text(memory.table["device"]),
            "reward": pa.array(columns.reward, from_pandas=True),
            "weight": np.where(measured, columns.weight, 0.0),
            "weighted": np.where(measured, columns.weight * columns.reward, 0.0),
            "failed": columns.failed.astype(np.int64),
        }
    ).filter(pa.array(columns.direction.values >= 0))
    keys = ["origin", "target", "family", "device"]
    grouped = rows.group_by(keys).aggregate(
        [("reward", "count"), ("weight", "sum"), ("weighted", "sum"), ("failed", "sum")]
    )
    return tuple(
        Edge(
            **{key: row[key] for key in keys},
            n=row["reward_count"],
            failures=row["failed_sum"],
            weight=round(row["weight_sum"], 4),
            gain=round(row["weighted_sum"] / row["weight_sum"], 4) if row["weight_sum"] else 0.0,
        )
        for row in grouped.sort_by([(key, "ascending") for key in keys]).to_pylist()
    )


def _examples(memory: Memory) -> dict[str, list[Transition]]:
    columns = memory.columns
    strategy = columns.strategy.values
    measured = np.flatnonzero(~np.isnan(columns.reward) & (strategy >= 0))
    order = measured[np.lexsort((columns.reward[measured], strategy[measured]))]
    _, first = np.unique(strategy[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    failed = np.flatnonzero(columns.failed & (strategy >= 0))
    _, lost = np.unique(strategy[failed], return_index=True)
    chosen = [*order[last].tolist(), *order[first].tolist(), *failed[lost].tolist()]
    unique = list(dict.fromkeys(int(index) for index in chosen))
    found: dict[str, list[Transition]] = defaultdict(list)
    for item in transitions_of(memory.table.take(pa.array(unique, pa.int64()))):
        found[item.strategy_id].append(item)
    return found


def by_evidence(memory: Memory, direction: Direction) -> list[Strategy]:
    """Strategies of a direction, those with most measured steps first."""
    return sorted(memory.strategies_of(direction.direction_id), key=lambda item: (-item.effect.n, item.strategy_id))


def ratio(log2: float) -> float:
    """An effect in log2 as a factor."""
    return math.exp2(max(-30.0, min(30.0, log2)))


def certain(effect: Effect) -> str:
    """``good`` or ``bad`` where the interval excludes zero, else empty."""
    return {1: "good", -1: "bad", 0: ""}[effect.sign]


def scale(effects: Iterable[Effect]) -> float:
    """Half-width in log2 that holds most intervals; bars are cut there."""
    ends = sorted(max(abs(effect.low), abs(effect.high)) for effect in effects if effect.known)
    return max(0.5, math.ceil(ends[int(len(ends) * 0.9)] * 2) / 2) if ends else 1.0


NO_KERNEL = "none of its logs has one that was verified and beats its baseline, or an older release built it"
"""Why a memory holds no kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A verified kernel.

    Attributes:
        source: name of the log collection it comes from; ``transition`` is the step that made it.
        speedup: over the reference, run eagerly; ``found``: over the first candidate of its search.
        kernel, reference: sources.
    """

    sha256: str
    arch: str
    language: str
    task: str
    family: str
    source: str
    speedup: float
    found: float
    transition: str
    kernel: str
    reference: str


def kernel_rows(memory: Memory) -> list[KernelRow]:
    """All kernels, the fastest of each device and language first."""
    table = memory.table.filter(pc.not_equal(memory.table["kernel"], ""))
    rows = [
        KernelRow(
            sha256=row["child_sha256"],
            arch=row["state_arch"],
            language=row["state_language"],
            task=row["task_id"],
            family=row["state_family"],
            source=row["source"],
            speedup=round(ratio(row["state_log2_speedup"] + row["reward"]), 4),
            found=round(ratio(row["state_log2_progress"] + row["reward"]), 4),
            transition=row["transition_id"],
            kernel=row["kernel"],
            reference=row["reference"],
        )
        for row in table.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row.arch, row.language, -row.speedup, row.transition))
