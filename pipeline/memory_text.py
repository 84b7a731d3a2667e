"""Memories as text for a terminal, or as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.features.extract import detect_language
from artifacts.features.techniques import ABOUT, Technique, techniques
from artifacts.measurement import Bottleneck
from artifacts.memory.edges import moves_from
from artifacts.memory.htg import Memory
from artifacts.memory.records import Direction, Edge, Effect, Strategy, Transition
from artifacts.memory.shipped import CARD, contents, is_shipped
from artifacts.memory.store import MemoryStore, MemoryVersion
from artifacts.task import operator_family
from artifacts.trajectory import State
from optimizer.prompting.text import clean
from pipeline.report.memory_view import NO_KERNEL, KernelRow, by_evidence, kernel_rows, ratio
from pipeline.voice import counted


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
        "quality": encode(version.manifest.quality),
        "parent": version.manifest.parent,
    }


def _version_line(version: MemoryVersion) -> str:
    row = _version_row(version)
    nouns = ("direction", "directions"), ("strategy", "strategies"), ("transition", "transitions")
    counts = ", ".join(counted(row["rows"].get(many, 0), noun, many) for noun, many in nouns)
    return f"{version.reference}  {row['published']}  {counts}  {' '.join(version.tags)}".rstrip()


def _time(version: MemoryVersion) -> str:
    return datetime.fromtimestamp(version.published, UTC).strftime("%Y-%m-%d %H:%M")


def shown(memory: Memory, item: str | None, as_json: bool) -> str:
    """A memory, or one direction or strategy of it by id or by a name that only one has.

    Raises:
        BadInputError: nothing, or more than one thing, is called ``item``.
    """
    if item is None:
        parts = {"directions": memory.directions, "strategies": memory.strategies}
        body = {"reference": memory.reference, "manifest": memory.manifest, **parts}
        return json.dumps(encode(body), indent=1) if as_json else _memory_lines(memory)
    strategy = _strategy(memory, item)
    if strategy is not None:
        rows = list(memory.rows_of(strategy.strategy_id))
        body = {**encode(strategy), "transitions": encode(rows)}
        return json.dumps(body, indent=1) if as_json else _strategy_lines(strategy, rows)
    direction = next((d for d in memory.directions if item in (d.direction_id, d.name)), None)
    if direction is None:
        raise BadInputError(f"{memory.reference} holds no direction or strategy {item!r}", "see htam memory show")
    if as_json:
        body = {**encode(direction), "strategies": encode(memory.strategies_of(direction.direction_id))}
        return json.dumps(body, indent=1)
    head, *strategies = _direction_lines(memory, direction)
    return "\n".join([head, direction.description, "", *strategies])


def _direction_lines(memory: Memory, direction: Direction) -> list[str]:
    head = f"{direction.name} ({direction.direction_id}): {effect(direction.effect)}"
    strategies = by_evidence(memory, direction)
    return [head, *(f"  {item.strategy_id}  {effect(item.effect)}  {item.name}" for item in strategies)]


def _strategy(memory: Memory, item: str) -> Strategy | None:
    found = [strategy for strategy in memory.strategies if item == strategy.strategy_id]
    found = found or [strategy for strategy in memory.strategies if item == strategy.name]
    if len(found) > 1:
        raise BadInputError(f"{len(found)} strategies are called {item!r}", f"use an id such as {found[0].strategy_id}")
    return found[0] if found else None


def _memory_lines(memory: Memory) -> str:
    manifest = memory.manifest
    several = counted(len(memory.strategies), "strategy", "strategies")
    transitions = counted(len(memory), "transition")
    counts = f"{counted(len(memory.directions), 'direction')}, {several}, {transitions}"
    lines = [
        f"{memory.reference}: {counts}",
        f"encoder {manifest.embedding.name or 'unknown'}, {counted(len(manifest.inputs), 'input file')}",
    ]
    if is_shipped(memory.reference):
        lines += ["", CARD.read_text(encoding="utf-8")]
    lines += [contents(memory)]
    lines += [item.line for item in manifest.quality] or ["without replay figures"]
    held = pc.sum(pc.not_equal(memory.table["kernel"], "")).as_py() or 0
    lines += [f"{counted(held, 'kernel')} to learn from: htam memory kernels {memory.reference}"] if held else []
    for direction in sorted(memory.directions, key=lambda item: -item.effect.n):
        head, *strategies = _direction_lines(memory, direction)
        lines += ["", head, *strategies[:12]]
        if len(strategies) > 12:
            place = f"htam memory show {memory.reference} {direction.direction_id}"
            lines.append(f"  … {len(strategies) - 12} more: {place}")
    return "\n".join(lines)


def _strategy_lines(strategy: Strategy, rows: list[Transition]) -> str:
    lines = [f"{strategy.name} ({strategy.strategy_id}): {effect(strategy.effect)}", strategy.intent]
    lines += [f"when {condition.words}" for condition in strategy.when]
    lines += [f"risk: {risk}" for risk in strategy.risks]
    if strategy.recipe and strategy.recipe != strategy.intent:
        lines += ["", strategy.recipe]
    lines += ["", f"{counted(len(rows), 'transition')}:"]
    lines += [
        _transition_line(row) for row in sorted(rows, key=lambda row: -(row.reward if row.reward is not None else -99))
    ]
    return "\n".join(lines)


def _transition_line(row: Transition) -> str:
    gain = row.outcome.value if row.reward is None else f"{ratio(row.reward):.2f}×"
    where = row.provenance.file if row.provenance.line is None else f"{row.provenance.file}:{row.provenance.line}"
    return f"  {gain:>14}  {row.task.task_id}  {row.device or 'unknown'}  {where}"


def effect(value: Effect) -> str:
    """An effect in words: mean factor, 95 % interval over tasks, numbers; no factor where too few tasks tell of it."""
    tries = f"{value.n} timed, {value.failures} failed"
    if not value.known:
        return f"{tries}: too few tasks ({value.tasks}) for an effect"
    return f"{_factor(value)} over {value.tasks} tasks, {tries}"


def _factor(value: Effect) -> str:
    return f"{ratio(value.mean):.2f}× ({ratio(value.low):.2f}–{ratio(value.high):.2f})"


SHOWN = 12
"""Digits of the SHA-256 of a source that name it."""


def kernels(memory: Memory, sha256: str | None, as_json: bool) -> str:
    """All kernels, or the source of the one that ``sha256`` begins, without characters that a reader cannot see.

    Raises:
        BadInputError: no kernel, or more than one, has such a hash.
    """
    rows = kernel_rows(memory)
    if sha256 is not None:
        return _source(memory, rows, sha256)
    if as_json:
        return json.dumps([encode(row) for row in rows], indent=1)
    if not rows:
        return f"{memory.reference} holds no kernel: {NO_KERNEL}"
    width = max(len(row.task) for row in rows)
    return "\n".join(
        f"{row.sha256[:SHOWN]}  {row.arch:>8} {row.language:>6}  {row.task:<{width}}  "
        f"{row.speedup:>7.2f}× its reference, {row.found:.2f}× its first candidate"
        for row in rows
    )


def _source(memory: Memory, rows: list[KernelRow], sha256: str) -> str:
    found = {row.sha256: row.kernel for row in rows if row.sha256.startswith(sha256)}
    if len(found) != 1:
        problem = f"{len(found)} kernels of {memory.reference} have a hash that begins with {sha256!r}"
        raise BadInputError(problem, f"htam memory kernels {memory.reference} lists them")
    return clean(next(iter(found.values())))


def moves(memory: Memory, file: Path, device: str, bound: str, as_json: bool) -> str:
    """Moves that apply to the kernel in ``file``, the surest gain first.

    Raises:
        BadInputError: ``bound`` is no bottleneck, or the memory has nothing of ``device``.
    """
    source = file.read_text("utf-8", "replace")
    held = techniques(source)
    known = sorted({edge.arch for edge in memory.edges} - {""})
    if device and device not in known:
        raise BadInputError(
            f"{memory.reference} has no moves on {device!r}", f"it has some on {', '.join(known) or 'none'}"
        )
    if bound not in ("", *Bottleneck):
        raise BadInputError(f"no bound is called {bound!r}", f"one of: {', '.join(Bottleneck)}")
    state = State(
        family=operator_family(file.stem, source),
        arch=device or (known[0] if len(known) == 1 else ""),
        language=detect_language(source) if held else Language.TORCH,
        bottleneck=Bottleneck(bound) if bound else Bottleneck.UNKNOWN,
    )
    found = moves_from(memory.edges, held, state)
    if as_json:
        return json.dumps({"techniques": sorted(held), "family": state.family, "moves": encode(found)}, indent=1)
    return "\n".join(_move_lines(memory, held, state, found))


def _move_lines(memory: Memory, held: frozenset[Technique], state: State, found: Sequence[Edge]) -> list[str]:
    has = ", ".join(sorted(held)) or "no technique that the program knows"
    lines = [f"{state.family} kernel with {has}"]
    sure = [edge for edge in found if edge.effect.known]
    if not sure:
        return [*lines, f"{memory.reference} has no record of a move from here on three operators or more"]
    lines += [line for edge in sure for line in _move(edge)]
    rest = [edge.move for edge in found if not edge.effect.known]
    return [*lines, f"tried, too few timings to tell: {', '.join(rest)}"] if rest else lines


def _move(edge: Edge) -> list[str]:
    where = ", ".join(text for text in (edge.arch or "any device", edge.bound, edge.family) if text)
    figures = f"{_factor(edge.effect)}, {edge.effect.tasks} operators"
    failed = f"; failed: {', '.join(edge.failures)}" if edge.failures else ""
    return [
        f"{edge.move:<20} from {edge.rung}: {figures}, {edge.attempts} tries [{where}]{failed}",
        *([f"    {ABOUT[Technique(edge.move[1:])].instruction}"] if edge.move.startswith("+") else []),
        *(f"    cure: {cure}" for cure in edge.cures),
    ]
