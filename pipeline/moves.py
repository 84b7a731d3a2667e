"""The moves of a memory that apply to a kernel, as text for a terminal or as JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.features.extract import detect_language
from artifacts.features.techniques import ABOUT, Technique, techniques
from artifacts.measurement import Bottleneck
from artifacts.memory.edges import moves_from
from artifacts.memory.htg import Memory
from artifacts.memory.records import Edge
from artifacts.task import operator_family
from artifacts.trajectory import State
from pipeline.report.memory_view import ratio


def listed(memory: Memory, file: Path, device: str, bound: str, as_json: bool) -> str:
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
    return "\n".join(_lines(memory, held, state, found))


def _lines(memory: Memory, held: frozenset[Technique], state: State, found: Sequence[Edge]) -> list[str]:
    has = ", ".join(sorted(held)) or "no technique that the program knows"
    lines = [f"{state.family} kernel with {has}"]
    sure = [edge for edge in found if edge.effect.known]
    if not sure:
        return [*lines, f"{memory.reference} has no record of a move from here on three operators or more"]
    lines += [line for edge in sure for line in _edge(edge)]
    rest = [edge.move for edge in found if not edge.effect.known]
    return [*lines, f"tried, too few timings to tell: {', '.join(rest)}"] if rest else lines


def _edge(edge: Edge) -> list[str]:
    effect = edge.effect
    where = ", ".join(text for text in (edge.arch or "any device", edge.bound, edge.family) if text)
    figures = f"{ratio(effect.mean):.2f}× ({ratio(effect.low):.2f}–{ratio(effect.high):.2f}), {effect.tasks} operators"
    failed = f"; failed: {', '.join(edge.failures)}" if edge.failures else ""
    return [
        f"{edge.move:<20} from {edge.rung}: {figures}, {edge.attempts} tries [{where}]{failed}",
        *([f"    {ABOUT[Technique(edge.move[1:])].instruction}"] if edge.move.startswith("+") else []),
        *(f"    cure: {cure}" for cure in edge.cures),
    ]
