"""Candidates of one task as a tree, and which of them to start from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from artifacts.measurement import Measurement, Outcome
from optimizer.arms import Intent, Member
from optimizer.search.settings import SearchSettings

CHANCES = 2
"""Tries of one direction from one parent: an idea is not dropped for its first bad implementation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One evaluated candidate.

    Attributes:
        step_id: ``<step>.<candidate>``; ``parent_id`` None when it was written from the reference.
        mode: how it came about: ``first``, ``repair``, ``optimize`` or ``tune``.
        plan: what its author says it does.
        incumbent_id: step of the candidate that it was timed against, None for none.
        intent: of the model's own list, which it implements.
        features: code features, for diversity and state.
    """

    step_id: str
    parent_id: str | None
    index: int
    mode: str
    source: str
    sha256: str
    plan: str
    direction: str
    strategies: tuple[str, ...]
    measurement: Measurement
    incumbent_id: str | None = None
    intent: Intent | None = None
    features: frozenset[str] = frozenset()

    @property
    def correct(self) -> bool:
        """Whether it may be a winner and a parent to optimize."""
        return self.measurement.outcome is Outcome.CORRECT


class Population:
    """All candidates of one task in the order of their steps."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self.nodes: list[Node] = []
        self._by_id: dict[str, Node] = {}
        self._score: dict[str, float] = {}
        self._refuted: set[str] = set()
        self._unusable: Counter[str] = Counter()

    def add(self, node: Node) -> None:
        """Add a measured candidate; its parent is there already."""
        self.nodes.append(node)
        self._by_id[node.step_id] = node
        if node.correct:
            self._score[node.step_id] = self._scored(node)

    def add_unusable(self, parent_id: str | None) -> None:
        """Count an answer without a new candidate, which was asked for from ``parent_id``."""
        if parent_id is not None:
            self._unusable[parent_id] += 1

    def node(self, step_id: str) -> Node:
        """Candidate of a step."""
        return self._by_id[step_id]

    def score(self, node: Node) -> float:
        """log2 speedup over the reference, chained along paired measurements; only for correct candidates."""
        return self._score[node.step_id]

    def gain(self, node: Node) -> float | None:
        """log2(incumbent time / own time) from the paired measurement; None when either was not timed."""
        measured = node.measurement
        if measured.timing is None or measured.incumbent is None:
            return None
        return math.log2(measured.incumbent.median_us / measured.timing.median_us)

    def members(self) -> tuple[Member, ...]:
        """All candidates as arms see them, oldest first."""
        alive = self._pool()
        return tuple(
            Member(
                step_id=node.step_id,
                parent_id=node.parent_id,
                score=self.score(node) if node.correct else None,
                gain=self.gain(node),
                fruitless=self.fruitless(node),
                alive=node in alive,
                direction=node.direction,
                features=node.features,
                plan=node.plan,
                measurement=node.measurement,
            )
            for node in self.nodes
        )

    @property
    def correct(self) -> list[Node]:
        """Correct candidates, oldest first."""
        return [node for node in self.nodes if node.correct]

    @property
    def best(self) -> Node | None:
        """Fastest correct candidate; a child only beats its parent when the paired test says faster."""
        standing = [node for node in self.correct if node.step_id not in self._refuted]
        promoted = [node for node in standing if node.measurement.faster_than_incumbent is not False]
        return max(promoted or standing, key=self.score, default=None)

    def refute(self, node: Node) -> None:
        """Let a candidate win no more: it failed when it was measured again."""
        self._refuted.add(node.step_id)

    def incumbent(self, parent: Node | None) -> Node | None:
        """What a child of ``parent`` is timed against: its nearest correct ancestor, else the best so far."""
        correct = [node for node in self.lineage(parent) if node.correct]
        return correct[-1] if correct else self.best

    def lineage(self, node: Node | None) -> list[Node]:
        """Ancestors of ``node`` and itself, oldest first."""
        chain: list[Node] = []
        while node is not None:
            chain.append(node)
            node = None if node.parent_id is None else self._by_id[node.parent_id]
        return chain[::-1]

    def children(self, node: Node | None) -> list[Node]:
        """Candidates derived from ``node``; those written from the reference for None."""
        wanted = None if node is None else node.step_id
        return [child for child in self.nodes if child.parent_id == wanted]

    def fruitless(self, node: Node) -> int:
        """Tries to improve ``node`` in a row, repairs included, that did not."""
        ends = [self._outcome_of_try(child) for child in self.children(node)]
        since = [improved for improved in ends if improved is not None]
        count = 0
        for improved in reversed(since):
            if improved:
                break
            count += 1
        return count

    def exhausted(self, node: Node | None) -> set[str]:
        """Directions that were tried :data:`CHANCES` times from ``node`` and never improved it."""
        ends = [(child.direction, self._outcome_of_try(child)) for child in self.children(node) if child.direction]
        vain = Counter(direction for direction, improved in ends if improved is False)
        good = {direction for direction, improved in ends if improved}
        return {direction for direction, tries in vain.items() if tries >= CHANCES} - good

    def parents(self, count: int) -> list[Node | None]:
        """Where the ``count`` candidates of the next step start from; None is the reference.

        Failures that were not repaired yet come first; the others start from the best correct candidates by
        speed and by difference from what is taken already. Going on from the same parent twice is depth
        with two directions; it is taken when the rest is too slow to be worth its difference.
        """
        chosen: list[Node | None] = list(self._repairable()[:count])
        pool = self._pool()
        while len(chosen) < count:
            chosen.append(self._next_parent(pool, chosen) if pool else None)
        return chosen

    def _scored(self, node: Node) -> float:
        gain = self.gain(node)
        if gain is not None and node.incumbent_id in self._score:
            return self._score[node.incumbent_id] + gain
        speedup = node.measurement.speedup(node.measurement.precision.reference)
        return 0.0 if speedup is None else math.log2(speedup)

    def _outcome_of_try(self, child: Node) -> bool | None:
        """Whether a child, or the repair it led to, improved; None when nothing can be said."""
        if child.correct:
            return child.measurement.faster_than_incumbent is not False
        if not child.measurement.outcome.charged_to_candidate:
            return None
        return any(self._outcome_of_try(repair) for repair in self.children(child))

    def _repairable(self) -> list[Node]:
        return [node for node in self.nodes if self._worth_repair(node) and not self.children(node)]

    def _worth_repair(self, node: Node) -> bool:
        if node.correct or not node.measurement.outcome.charged_to_candidate:
            return False
        failed = 0
        for ancestor in reversed(self.lineage(node)):
            if ancestor.correct:
                break
            failed += 1 + self._unusable[ancestor.step_id]
        return failed <= self._settings.repairs

    def _pool(self) -> list[Node]:
        alive = [node for node in self.correct if self.fruitless(node) < self._settings.window]
        return alive or self.correct

    def _next_parent(self, pool: Sequence[Node], chosen: Sequence[Node | None]) -> Node:
        taken = [node for node in chosen if node is not None]

        def value(node: Node) -> float:
            apart = min((_distance(node, other) for other in taken), default=0.0)
            return self.score(node) + self._settings.diversity * apart

        return max(pool, key=value)


def _distance(one: Node, other: Node) -> float:
    """Share of code features that only one of the two has, 0..1."""
    either = one.features | other.features
    return len(one.features ^ other.features) / len(either) if either else 0.0
