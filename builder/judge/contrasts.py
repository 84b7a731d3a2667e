"""What could be learnt at all: do directions (strategies) differ among the children of one parent, on the average?

No ranking that goes by the names of options can know more than their average effects, so this asks of the data what
replay asks of a formula, without one, and says how large an effect it would have found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.htg import Memory
from builder.judge.rankers import options_of

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
DRAWS = 500
WORLDS = 100
FOUND = 0.95
"""Quantile of the shares that chance explains from which an effect counts as found."""
SIZES = 0.005 * 1.25 ** np.arange(24)
"""Standard deviations of effects that are tried, in log2: 0.005 to 0.85."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """How much of what siblings differ in, their options explain.

    Attributes:
        rows, parents: steps with siblings that took another option, and their parents.
        spread: standard deviation of their gains around their parents' means, in log2.
        explained: share of that variance that the average effects of the options explain; ``by_chance`` the same when
            options are dealt out anew among the children of each parent.
        probability: that chance explains as much.
        detectable: least standard deviation of the options' effects that is found in 4 of 5 made worlds; infinite when
            none is.
        worth: log2 gain a step of always taking the best option tried, did the effects differ by that much.
    """

    rows: int
    parents: int
    spread: float
    explained: float
    by_chance: float
    probability: float
    detectable: float
    worth: float


def contrast(memory: Memory, level: str, *, kept: bool, seed: int = 0) -> Contrast | None:
    """The contrast of ``level``; None where no parent has children of two options.

    Args:
        kept: a failed or slower step gained nothing, as in a search that keeps its best, instead of losing.
    """
    rows = _rows(memory, level)
    if not len(rows):
        return None
    options = options_of(memory, level).values[rows].astype(np.int64)
    _, parents = np.unique(memory.columns.siblings[rows], return_inverse=True)
    gains = memory.gains[rows].astype(np.float64)
    weights = memory.columns.weight[rows].astype(np.float64)
    data = _Data(parents, options, np.maximum(gains, 0.0) if kept else gains, weights)
    random = np.random.default_rng(seed)
    dealt = [data.dealt(random) for _ in range(DRAWS)]
    null = np.array([data.share(options) for options in dealt])
    explained = data.share(options)
    size, worth = _detectable(data, dealt[:WORLDS], float(np.quantile(null, FOUND)), random)
    return Contrast(
        rows=len(rows),
        parents=int(parents.max()) + 1,
        spread=float(np.sqrt(np.average(data.centred(data.gains) ** 2, weights=weights))),
        explained=explained,
        by_chance=float(null.mean()),
        probability=float((1 + (null >= explained).sum()) / (1 + DRAWS)),
        detectable=size,
        worth=worth,
    )


@dataclass(frozen=True, slots=True)
class _Data:
    parents: Ints
    options: Ints
    gains: Array
    weights: Array

    def centred(self, values: Array) -> Array:
        """Values less the mean of their parent."""
        totals = np.bincount(self.parents, weights=self.weights)
        means: Array = np.bincount(self.parents, weights=self.weights * values) / totals
        return values - means[self.parents]

    def share(self, options: Ints, gains: Array | None = None) -> float:
        """Share of the variance within parents that the mean of each option explains."""
        rest = self.centred(self.gains if gains is None else gains)
        sums = np.bincount(options, weights=self.weights * rest)
        totals = np.bincount(options, weights=self.weights)
        explained = np.sum(sums**2 / np.maximum(totals, 1e-12))
        return float(explained / max(np.sum(self.weights * rest**2), 1e-12))

    def dealt(self, random: np.random.Generator) -> Ints:
        """Options dealt out anew among the children of each parent."""
        order = np.lexsort((random.random(len(self.parents)), self.parents))
        home = np.argsort(self.parents, kind="stable")
        options = np.empty_like(self.options)
        options[home] = self.options[order]
        return options


def _detectable(data: _Data, dealt: list[Ints], found_from: float, random: np.random.Generator) -> tuple[float, float]:
    """Least effect that is found in 4 of 5 worlds without one to which it is added, and what it is worth."""
    shapes = random.standard_normal((len(dealt), int(data.options.max()) + 1))
    worth = float(
        np.mean([_best_less_mean(data, options, shape) for options, shape in zip(dealt, shapes, strict=True)])
    )
    for size in SIZES:
        shares = [
            data.share(options, data.gains + size * shape[options])
            for options, shape in zip(dealt, shapes, strict=True)
        ]
        if np.mean(np.array(shares) > found_from) >= 0.8:
            return float(size), float(size * worth)
    return float("inf"), float("inf")


def _best_less_mean(data: _Data, options: Ints, effects: Array) -> float:
    """Mean over parents of the best option's effect less the mean of those tried."""
    pairs = np.unique(np.stack([data.parents, options], axis=1), axis=0)
    best = np.full(int(data.parents.max()) + 1, -np.inf)
    np.maximum.at(best, pairs[:, 0], effects[pairs[:, 1]])
    means = np.bincount(pairs[:, 0], weights=effects[pairs[:, 1]]) / np.bincount(pairs[:, 0])
    return float(np.mean(best - means))


def _rows(memory: Memory, level: str) -> npt.NDArray[np.intp]:
    """Rows of known gain and option with a sibling of another option."""
    options, columns = options_of(memory, level), memory.columns
    rows = np.flatnonzero(~np.isnan(memory.gains) & (options.values >= 0) & (columns.weight > 0))
    if not len(rows):
        return rows
    siblings, codes = columns.siblings[rows], options.values[rows]
    count = int(siblings.max()) + 1
    least, most = np.full(count, np.iinfo(np.int32).max), np.full(count, -1)
    np.minimum.at(least, siblings, codes)
    np.maximum.at(most, siblings, codes)
    several: npt.NDArray[np.intp] = rows[(least != most)[siblings]]
    return several
