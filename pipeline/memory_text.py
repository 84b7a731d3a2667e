"""Memories as text for a terminal, or as JSON for a program."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from artifacts.memory.records import Effect, Strategy, Transition
from artifacts.memory.replay_figures import replay_figures
from artifacts.memory.store import MemoryStore, MemoryVersion
from pipeline.report.memory_view import ratio


def versions(store: str, name: str | None, as_json: bool) -> str:
    """Every published version of one memory or of all, oldest first.

    Raises:
        ArtifactError: ``name`` is given and the store does not hold it.
    """
    memories = MemoryStore(store)
    if name is not None:
        memories.resolve(name)
    found = memories.list(name)
    if as_json:
        return json.dumps([_version_row(version) for version in found], indent=1)
    if not found:
        return f"store {store} holds no memory; htam memory build makes one"
    return "\n".join(_version_line(version) for version in found)


def _version_row(version: MemoryVersion) -> dict[str, Any]:
    rows = {name.removesuffix(".parquet"): entry.rows for name, entry in version.manifest.files.items()}
    return {
        "reference": version.reference,
        "tags": list(version.tags),
        "published": _time(version),
        "rows": rows,
        "quality": dict(version.manifest.quality),
        "parent": version.manifest.parent,
    }


def _version_line(version: MemoryVersion) -> str:
    row = _version_row(version)
    counts = ", ".join(f"{row['rows'].get(name, 0):,} {name}" for name in ("directions", "strategies", "transitions"))
    return f"{version.reference}  {row['published']}  {counts}  {' '.join(version.tags)}".rstrip()


def _time(version: MemoryVersion) -> str:
    return datetime.fromtimestamp(version.published, UTC).strftime("%Y-%m-%d %H:%M")


def shown(memory: Memory, item: str | None, as_json: bool) -> str:
    """A memory, or one direction or strategy of it by id or by a name that only one has.

    Raises:
        BadInputError: nothing, or more than one thing, is called ``item``.
    """
    if item is None:
        return _memory_json(memory) if as_json else _memory_lines(memory)
    strategy = _strategy(memory, item)
    if strategy is not None:
        rows = list(memory.rows_of(strategy_id=strategy.strategy_id))
        return _dump(strategy, rows) if as_json else _strategy_lines(strategy, rows)
    direction = next((d for d in memory.directions if item in (d.direction_id, d.name)), None)
    if direction is None:
        raise BadInputError(f"{memory.reference} holds no direction or strategy {item!r}", "see htam memory show")
    if as_json:
        return json.dumps(
            encode(direction) | {"strategies": encode(memory.strategies_of(direction.direction_id))}, indent=1
        )
    lines = [f"{direction.name} ({direction.direction_id}): {effect(direction.effect)}", direction.description, ""]
    lines += [
        f"  {s.strategy_id}  {effect(s.effect)}  {s.name}"
        for s in _sorted(memory.strategies_of(direction.direction_id))
    ]
    return "\n".join(lines)


def _strategy(memory: Memory, item: str) -> Strategy | None:
    found = [strategy for strategy in memory.strategies if item == strategy.strategy_id]
    found = found or [strategy for strategy in memory.strategies if item == strategy.name]
    if len(found) > 1:
        raise BadInputError(f"{len(found)} strategies are called {item!r}", f"use an id such as {found[0].strategy_id}")
    return found[0] if found else None


def _memory_json(memory: Memory) -> str:
    body = {"reference": memory.reference, "manifest": encode(memory.manifest)}
    return json.dumps(
        body | {"directions": encode(memory.directions), "strategies": encode(memory.strategies)}, indent=1
    )


def _memory_lines(memory: Memory) -> str:
    manifest = memory.manifest
    counts = f"{len(memory.directions)} directions, {len(memory.strategies)} strategies, {len(memory):,} transitions"
    lines = [
        f"{memory.reference}: {counts}",
        f"encoder {manifest.embedding.name or 'unknown'}, {len(manifest.inputs)} input files",
    ]
    judged = [figures.line for figures in replay_figures(manifest.quality)]
    lines += judged or ["without replay figures"]
    held = pc.sum(pc.not_equal(memory.table["kernel"], "")).as_py() or 0
    lines += [f"{held:,} kernels to learn from: htam memory kernels {memory.reference}"] if held else []
    for direction in sorted(memory.directions, key=lambda item: -item.effect.n):
        lines.append(f"\n{direction.name} ({direction.direction_id}): {effect(direction.effect)}")
        strategies = _sorted(memory.strategies_of(direction.direction_id))
        lines += [f"  {item.strategy_id}  {effect(item.effect)}  {item.name}" for item in strategies[:12]]
        if len(strategies) > 12:
            lines.append(
                f"  … {len(strategies) - 12} more: htam memory show {memory.reference} {direction.direction_id}"
            )
    return "\n".join(lines)


def _sorted(strategies: tuple[Strategy, ...]) -> list[Strategy]:
    return sorted(strategies, key=lambda item: (-item.effect.n, item.strategy_id))


def _dump(strategy: Strategy, rows: list[Transition]) -> str:
    return json.dumps(encode(strategy) | {"transitions": [encode(row) for row in rows]}, indent=1)


def _strategy_lines(strategy: Strategy, rows: list[Transition]) -> str:
    lines = [f"{strategy.name} ({strategy.strategy_id}): {effect(strategy.effect)}", strategy.intent]
    lines += [f"when {condition.words}" for condition in strategy.when]
    lines += [f"risk: {risk}" for risk in strategy.risks]
    if strategy.recipe and strategy.recipe != strategy.intent:
        lines += ["", strategy.recipe]
    lines += ["", f"{len(rows)} transitions:"]
    lines += [
        _transition_line(row) for row in sorted(rows, key=lambda row: -(row.reward if row.reward is not None else -99))
    ]
    return "\n".join(lines)


def _transition_line(row: Transition) -> str:
    gain = row.outcome.value if row.reward is None else f"{ratio(row.reward):.2f}×"
    where = row.provenance.file if row.provenance.line is None else f"{row.provenance.file}:{row.provenance.line}"
    return f"  {gain:>14}  {row.task.task_id}  {row.device or 'unknown'}  {where}"


def effect(value: Effect) -> str:
    """An effect in words: mean factor, 95 % interval, numbers."""
    if value.n == 0:
        return f"never timed, {value.failures} failed"
    interval = f"{ratio(value.low):.2f}–{ratio(value.high):.2f}"
    return f"{ratio(value.mean):.2f}× ({interval}), {value.n} timed, {value.failures} failed"
