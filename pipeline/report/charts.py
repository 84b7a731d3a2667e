"""Coordinates for inline SVG charts; the drawing itself is in the templates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.figures import fast_p

WIDTH, HEIGHT = 400.0, 250.0
"""So narrow that it is readable on a telephone; a wide screen shows two side by side."""
LEFT, RIGHT, TOP, BOTTOM = 40.0, 120.0, 26.0, 34.0
STRIP = 26.0
"""Height of the strip for candidates that have no time."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels, linear or logarithmic to base 2, with ticks."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of ``value``."""
        low, high, value = (
            (math.log2(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """About five round values."""
        if self.log:
            first, last = math.floor(math.log2(self.low)), math.ceil(math.log2(self.high))
            every = max(1, math.ceil((last - first) / 6))
            marks = [2.0**power for power in range(first, last + 1, every)]
            inside = [mark for mark in marks if self.low <= mark <= self.high]
            return inside if len(inside) > 1 else [self.low, self.high]
        step = _round_step((self.high - self.low) / 5)
        below = math.ceil(self.low / step)
        return [round(step * index, 10) for index in range(below, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(raw: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    return next((power * factor for factor in (1.0, 2.0, 5.0) if power * factor >= raw), power * 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series: pixel points, with the label at ``label_y``."""

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]
    label_y: float

    @property
    def path(self) -> str:
        """SVG polyline points."""
        return " ".join(f"{x},{y}" for x, y in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One candidate on a chart: the text shown when it is pointed at, and the row of the page it leads to."""

    x: float
    y: float
    kind: str
    title: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything the chart macro draws; ``strip`` is the line of those that have no value, below the plot."""

    x_title: str
    y_title: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...] = ()
    edges: tuple[tuple[str, bool], ...] = ()
    strip: float | None = None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM


def x_axis(low: float, high: float, log: bool = False) -> Axis:
    """Horizontal axis of the common frame."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, log)


def y_axis(low: float, high: float, log: bool = False, strip: bool = False) -> Axis:
    """Vertical axis of the common frame, upwards; ``strip`` leaves room below it."""
    return Axis(low, high, HEIGHT - BOTTOM - strip * STRIP, TOP, log)


def lines(series: Sequence[tuple[str, str, Sequence[tuple[float, float]]]]) -> tuple[Line, ...]:
    """Series (name, kind, points) with their labels moved apart at the right end."""
    labels = spread([points[-1][1] + 4 for _, _, points in series])
    return tuple(
        Line(name=name, kind=kind, points=tuple(points), label_y=label)
        for (name, kind, points), label in zip(series, labels, strict=True)
    )


def fast_p_chart(curves: Mapping[str, Sequence[float | None]]) -> Chart:
    """Share of tasks more than p times as fast, a step curve for each name; None is a task without a candidate."""
    known = [value for speedups in curves.values() for value in speedups if value is not None]
    x = x_axis(max(1 / 16, min([0.5, *known]) / 1.1), min(64.0, max([2.0, *known]) * 1.1), log=True)
    y = y_axis(0.0, 1.0)
    series = [
        (name, "curve", [(x.at(p), y.at(share)) for p, share in _fast_p_steps(speedups, x)])
        for name, speedups in curves.items()
    ]
    return Chart(
        x_title="p, times as fast as the baseline (log scale)",
        y_title="share of tasks faster than p",
        x_ticks=tuple((x.at(tick), f"{tick:g}") for tick in x.ticks()),
        y_ticks=tuple((y.at(tick), f"{tick:.0%}") for tick in y.ticks()),
        lines=lines(series),
    )


def _fast_p_steps(speedups: Sequence[float | None], x: Axis) -> list[tuple[float, float]]:
    """Corners of the curve: level up to the speedup of a task, then down."""
    corners, share = [(x.low, fast_p(speedups, x.low))], fast_p(speedups, x.low)
    for value in sorted({value for value in speedups if value is not None and x.low < value <= x.high}):
        corners.append((value, share))
        share = fast_p(speedups, value)
        corners.append((value, share))
    return [*corners, (x.high, share)]


def bar(low: float, mean: float, high: float, span: float, width: float = 150.0) -> dict[str, float | str]:
    """Pixels of an interval in log2 with its mean and the line of no effect, cut at ``span``.

    ``kind`` is ``good`` or ``bad`` where the interval excludes no effect.
    """

    def at(value: float) -> float:
        return round((max(-span, min(span, value)) + span) / (2 * span) * width, 1)

    kind = "" if low <= 0.0 <= high else "good" if mean > 0 else "bad"
    return {
        "low": at(low),
        "width": round(max(1.5, at(high) - at(low)), 1),
        "mean": at(mean),
        "zero": at(0.0),
        "kind": kind,
    }


def spread(wanted: Sequence[float], gap: float = 13.0) -> list[float]:
    """Move label positions apart, keeping order and above the axis, so that no two are closer than ``gap`` pixels."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = list(wanted)
    for before, after in itertools.pairwise(order):
        placed[after] = max(placed[after], placed[before] + gap)
    overflow = max(0.0, max(placed, default=0.0) - (HEIGHT - BOTTOM + 4.0))
    return [position - overflow for position in placed]


def quantity(value: float, digits: int = 3) -> str:
    """Short text of a number: 3 significant digits, no exponent for usual sizes."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def microseconds(value: float | None) -> str:
    """A time in the unit that reads best."""
    if value is None:
        return "–"
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")):
        if value >= factor:
            return f"{quantity(value / factor)} {unit}"
    return f"{quantity(value)} µs"
