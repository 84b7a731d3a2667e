"""Coordinates for inline SVG charts; the drawing itself is in the templates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 132.0, 24.0, 34.0


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


@dataclass(frozen=True, slots=True)
class Dot:
    """One candidate on a chart, with the text shown when it is pointed at."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything the chart macro draws."""

    x_title: str
    y_title: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...] = ()
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def x_axis(low: float, high: float, log: bool = False) -> Axis:
    """Horizontal axis of the common frame."""
    return Axis(low, high, LEFT, WIDTH - RIGHT, log)


def y_axis(low: float, high: float, log: bool = False) -> Axis:
    """Vertical axis of the common frame, upwards."""
    return Axis(low, high, HEIGHT - BOTTOM, TOP, log)


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
