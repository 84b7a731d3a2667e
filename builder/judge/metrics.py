"""How good one ranking was on one occasion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from builder.judge.rankers import Estimate

NOTICEABLE = 0.07
"""Gains in log2 that differ by less (5 %) are not told apart: timings are not better than that."""
LOWEST = Estimate(-math.inf, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Figures of one ranking on one occasion.

    Attributes:
        regret: gain of the best option minus the mean gain of those ranked first, in log2.
        kept: the same in a search that keeps its best, where a failed or slower option gains nothing and costs nothing.
        ndcg: discounted gain of the ranking over that of the best ranking; None when nothing was gained.
        right, pairs: sibling pairs in the right order (ties count half) out of those that differ noticeably.
        hit: the share of the options ranked among the first three that is the best; None with three options or fewer.
    """

    regret: float
    kept: float
    ndcg: float | None
    right: float
    pairs: int
    hit: float | None


def judge(
    gains: Mapping[str, float], estimates: Mapping[str, Estimate], kept: Mapping[str, float] | None = None
) -> Judgement:
    """Compare the ranking of ``estimates`` with what the options really gained; unknown options rank last.

    Args:
        kept: gains in a search that keeps its best; without it, ``gains`` where they are above zero.
    """
    means = {option: estimates.get(option, LOWEST).mean for option in gains}
    right, pairs = _pairs(gains, means)
    if kept is None:
        kept = {option: max(gain, 0.0) for option, gain in gains.items()}
    return Judgement(
        regret=max(gains.values()) - _average_of_first(gains, means),
        kept=max(kept.values()) - _average_of_first(kept, means),
        ndcg=_ndcg(gains, means),
        right=right,
        pairs=pairs,
        hit=_hit(gains, means),
    )


def _average_of_first(gains: Mapping[str, float], means: Mapping[str, float]) -> float:
    top = max(means.values())
    chosen = [gains[option] for option, mean in means.items() if mean == top]
    return sum(chosen) / len(chosen)


def _pairs(gains: Mapping[str, float], means: Mapping[str, float]) -> tuple[float, int]:
    right, pairs = 0.0, 0
    for one, other in combinations(sorted(gains), 2):
        difference = gains[one] - gains[other]
        if abs(difference) < NOTICEABLE:
            continue
        pairs += 1
        if means[one] == means[other]:
            right += 0.5
        else:
            right += float((means[one] > means[other]) == (difference > 0))
    return right, pairs


def _ndcg(gains: Mapping[str, float], means: Mapping[str, float]) -> float | None:
    worth = {option: max(gain, 0.0) for option, gain in gains.items()}
    ideal = sum(gain * _discount(place) for place, gain in enumerate(sorted(worth.values(), reverse=True)))
    if ideal <= 0:
        return None
    places = _expected_discounts(means)
    return sum(worth[option] * places[option] for option in worth) / ideal


def _expected_discounts(means: Mapping[str, float]) -> dict[str, float]:
    """Discount of each option, averaged over all orders of the options that tie."""
    found: dict[str, float] = {}
    place = 0
    for mean in sorted(set(means.values()), reverse=True):
        tied = [option for option, value in means.items() if value == mean]
        average = sum(_discount(place + offset) for offset in range(len(tied))) / len(tied)
        found |= dict.fromkeys(tied, average)
        place += len(tied)
    return found


def _discount(place: int) -> float:
    return 1.0 / math.log2(place + 2)


def _hit(gains: Mapping[str, float], means: Mapping[str, float]) -> float | None:
    if len(gains) <= 3:
        return None
    best = max(gains, key=lambda option: (gains[option], option))
    above = sum(mean > means[best] for mean in means.values())
    tied = sum(mean == means[best] for mean in means.values())
    return min(1.0, max(0.0, (3 - above) / tied))
