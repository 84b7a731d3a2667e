"""The page of one memory: graph, strategies, replay, sources, quarantine."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from markupsafe import Markup

from artifacts.memory.htg import START, Memory
from artifacts.memory.records import Strategy
from artifacts.trajectory import Quarantined
from pipeline.report import charts, page
from pipeline.report.memory_view import NO_KERNEL, MemoryView, certain, kernel_rows, ratio, scale, view

SECTIONS = (
    ("summary", "Summary"),
    ("graph", "Graph"),
    ("moves", "Moves"),
    ("strategies", "Strategies"),
    ("kernels", "Kernels"),
    ("replay", "Replay"),
    ("sources", "Sources"),
    ("quarantine", "Quarantine"),
    ("facts", "How it was built"),
)
SIZE = 720.0
RADIUS = 240.0
SPOKE_MARGIN = 184
"""Room around the graph for labels that stand like spokes."""
LEAST = (1, 3, 10, 30, 100)
LISTED = 15
"""Directions in the open part of the summary; the others are behind a fold."""
CROWDED = 20
"""Directions from which labels stand like spokes, because lying ones would cover each other."""
LONGEST_SPOKE = 30
ARROWS = 70
"""More arrows than this are thinned when the page opens."""


def memory_page(memory: Memory, quarantined: Sequence[Quarantined] | None = None) -> str:
    """Render the page of ``memory``; ``quarantined`` is None where the records themselves are not at hand."""
    shown = view(memory)
    strategies = [item.effect for items in shown.strategies.values() for item in items]
    span = scale([*(direction.effect for direction in shown.directions), *strategies])
    return page.render(
        "memory.html.j2",
        kind="HTAM memory",
        title=shown.reference,
        sections=SECTIONS,
        view=shown,
        manifest=memory.manifest,
        nodes=nodes(shown),
        graph_data=script_data(
            {
                "nodes": [asdict(node) for node in nodes(shown)],
                "edges": [asdict(edge) for edge in shown.edges],
                "largest": largest_node(len(shown.directions)),
                "middle": SIZE / 2,
            }
        ),
        moves=[edge for edge in memory.edges if edge.effect.known],
        listed=LISTED,
        margin=SPOKE_MARGIN if len(shown.directions) > CROWDED else 0,
        bar=lambda effect: charts.bar(effect.low, effect.mean, effect.high, span),
        span=span,
        ratio=ratio,
        certain=certain,
        stated=stated(memory.strategies),
        counts=Counter(certain(item.effect) for items in shown.strategies.values() for item in items),
        kernels=kernel_rows(memory),
        no_kernel=NO_KERNEL,
        quarantined=quarantined,
        quarantine_rows=reasons(quarantined or ()),
        replay_rows=memory.manifest.quality,
        size=SIZE,
        least=least_steps(shown),
    )


def stated(strategies: Sequence[Strategy]) -> tuple[int, int]:
    """How many strategies say when they gain, and how many when or how they fail."""
    return sum(bool(item.when) for item in strategies), sum(bool(item.risks) for item in strategies)


def least_steps(shown: MemoryView) -> int:
    """Fewest steps an arrow must stand for so that the opened graph stays readable."""
    sums: Counter[tuple[str, str]] = Counter()
    for edge in shown.edges:
        sums[edge.origin, edge.target] += edge.n
    fits = [least for least in LEAST if sum(n >= least for n in sums.values()) <= ARROWS]
    return fits[0] if fits else LEAST[-1]


def reasons(quarantined: Sequence[Quarantined]) -> list[tuple[str, int, str]]:
    """Quarantined records by reason, most frequent first, each with the place of its first one."""
    first: dict[str, str] = {}
    for record in quarantined:
        first.setdefault(record.reason, record.file if record.line is None else f"{record.file}:{record.line}")
    counted = Counter(record.reason for record in quarantined)
    return [(reason, count, first[reason]) for reason, count in counted.most_common(200)]


UPRIGHT = 0.1
"""Distance from the vertical, as a cosine, up to which a label is centred; two centred neighbours would collide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A direction on the circle; ``anchor`` is the SVG text anchor of its label, ``turn`` its rotation in degrees."""

    id: str
    name: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    turn: float = 0.0
    spoke: bool = False


def largest_node(count: int) -> float:
    """Radius of the direction with most evidence, so that neighbours on the circle do not cover each other."""
    return round(min(26.0, max(5.0, 0.9 * math.pi * RADIUS / max(1, count))), 1)


def nodes(shown: MemoryView) -> list[GraphNode]:
    """Directions on a circle, the start in its middle; directions that follow each other often stand close."""
    order = _circular_order(shown)
    placed = [_on_circle(START, "start", 0.0, 0.0)]
    place = _spoke if len(order) > CROWDED else _on_circle
    for index, (name, label) in enumerate(order):
        placed.append(place(name, label, 2 * math.pi * index / max(1, len(order)) - math.pi / 2, RADIUS))
    return placed


def _spoke(name: str, label: str, angle: float, radius: float) -> GraphNode:
    """A node whose label goes on outwards from the circle, read from the left on either side."""
    out, left = radius + largest_node(CROWDED) / 2 + 8, math.cos(angle) < 0
    return GraphNode(
        id=name,
        name=label if len(label) <= LONGEST_SPOKE else f"{label[: LONGEST_SPOKE - 1]}\u2026",
        x=round(SIZE / 2 + radius * math.cos(angle), 1),
        y=round(SIZE / 2 + radius * math.sin(angle), 1),
        label_x=round(SIZE / 2 + out * math.cos(angle), 1),
        label_y=round(SIZE / 2 + out * math.sin(angle), 1),
        anchor="end" if left else "start",
        turn=round(math.degrees(angle) + (180.0 if left else 0.0), 1),
        spoke=True,
    )


def _on_circle(name: str, label: str, angle: float, radius: float) -> GraphNode:
    x, y = SIZE / 2 + radius * math.cos(angle), SIZE / 2 + radius * math.sin(angle)
    out = radius + 56 if radius else 0.0
    side, up = math.cos(angle), math.sin(angle)
    return GraphNode(
        id=name,
        name=label,
        x=round(x, 1),
        y=round(y, 1),
        label_x=round(SIZE / 2 + out * math.cos(angle), 1),
        label_y=round(SIZE / 2 + out * up + (6.0 * up if radius else 26.0), 1),
        anchor="middle" if abs(side) < UPRIGHT or not radius else "start" if side > 0 else "end",
    )


def _circular_order(shown: MemoryView) -> list[tuple[str, str]]:
    """Greedy chain: after each direction comes the one that shares most transitions with it."""
    names = {direction.direction_id: direction.name for direction in shown.directions}
    together: dict[tuple[str, str], int] = {}
    for edge in shown.edges:
        pair = (min(edge.origin, edge.target), max(edge.origin, edge.target))
        together[pair] = together.get(pair, 0) + edge.n
    left = list(names)
    chain = left[:1]
    left = left[1:]
    while left:
        last = chain[-1]
        nearest = max(left, key=lambda name: (together.get((min(last, name), max(last, name)), 0), -left.index(name)))
        chain.append(nearest)
        left.remove(nearest)
    return [(name, names[name]) for name in chain]


def script_data(value: object) -> Markup:
    """JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
