"""What clustering is asked and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from artifacts.memory.records import Direction, Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How texts are grouped; part of a memory's identity.

    Attributes:
        seed: of Louvain; two seeds give nearly the same groups.
        neighbours: nearest neighbours of a text in the mutual graph.
        min_similarity: cosine from which two texts may be linked.
        resolution: of Louvain; higher gives more, smaller communities.
        min_size: texts that a community needs to become a strategy of its own.
        cohesion: cosine to the centre below which a member is dropped from its community.
        term_weight: weight of glossary terms against the encoder.
        community_weight: share of a community's mean score in that of its members.
        feature_weight: weight of code features against texts, for recorded steps.
        known: anchor score from which a community or text belongs to a known strategy.
        sample: distinct texts that the graph is built on; the rest is assigned to its communities.
    """

    seed: int = 0
    neighbours: int = 15
    min_similarity: float = 0.8
    resolution: float = 1.0
    min_size: int = 4
    cohesion: float = 0.7
    term_weight: float = 0.7
    community_weight: float = 0.2
    feature_weight: float = 0.15
    known: float = 0.55
    sample: int = 20_000

    def __post_init__(self) -> None:
        for name in ("neighbours", "min_size", "sample"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("min_similarity", "cohesion", "community_weight"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in 0..1, got {getattr(self, name)}")
        if self.resolution <= 0 or self.term_weight < 0 or self.feature_weight < 0:
            raise ValueError("resolution must be positive, term_weight and feature_weight not negative")


UNCLASSIFIED = "unclassified"
"""What the direction and the strategy of a text that belongs nowhere are called for people."""
NOTHING_YET = Effect(mean=0.0, low=0.0, high=0.0, n=0, tasks=0, failures=0)


class Action(NamedTuple):
    """What clustering looks at in a step.

    Attributes:
        text: strategy text.
        added, removed: code features that the child has and the parent lacks, and the reverse.
        mends: whether the parent had failed, so that the step may have mended it.
    """

    text: str
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    mends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyNode:
    """A strategy under its direction."""

    strategy_id: str
    direction_id: str
    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What clustering said of texts, actions or raw transitions, in their order; an empty id is noise.

    Attributes:
        directions, strategies: what the ids stand for, sorted by id; every id in use is named.
    """

    direction_ids: Sequence[str]
    strategy_ids: Sequence[str]
    directions: tuple[Direction, ...]
    strategies: tuple[StrategyNode, ...]

    def __post_init__(self) -> None:
        if len(self.direction_ids) != len(self.strategy_ids):
            raise ValueError("every row needs a direction and a strategy, empty for noise")
        directions = {node.direction_id for node in self.directions}
        strategies = {node.strategy_id for node in self.strategies}
        unnamed = {*self.direction_ids} - {"", *directions} or {*self.strategy_ids} - {"", *strategies}
        if unnamed:
            raise ValueError(f"{min(unnamed)!r} is used and not named")
        if any(" " in name for name in directions):
            raise ValueError("direction ids must not hold blanks, histories are separated by them")
