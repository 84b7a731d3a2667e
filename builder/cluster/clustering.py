"""From texts, or described steps, to strategies and directions."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from builder.cluster.graph import NONE, Labels, assign, centres, communities
from builder.cluster.naming import found_strategy
from builder.cluster.record import UNCLASSIFIED, Action, Assignment, Clustering, DirectionNode, StrategyNode
from builder.cluster.scoring import Reading, Represented, feature_scores, prototypes, read_texts, represent
from builder.cluster.settings import ClusterSettings
from builder.cluster.taxonomy import seed_directions, seeds
from builder.describe.intent import intent
from builder.embed import Embedder, Vectors

PLAIN_TEXTS = ClusterSettings(min_similarity=0.75)
"""Settings for plain texts: without a code difference their neighbours are worth more, so they are linked earlier."""
_NOWHERE = Assignment(direction_id=UNCLASSIFIED, strategy_id=UNCLASSIFIED, score=0.0)


def cluster_texts(texts: Sequence[str], embedder: Embedder, settings: ClusterSettings = PLAIN_TEXTS) -> Clustering:
    """Group plain strategy texts; equal intents are looked at once."""
    meant = {text: intent(text) or text.strip() for text in dict.fromkeys(texts)}
    groups = _Groups.of(meant.values(), embedder, settings)
    found = {text: groups.of_text(meaning, None) for text, meaning in meant.items()}
    return groups.clustering([found[text] for text in texts], texts)


def cluster(
    described: Sequence[Action], embedder: Embedder, settings: ClusterSettings | None = None, workers: int = 1
) -> Clustering:
    """Group described steps by their texts, with the code difference as further evidence.

    Args:
        workers: processes that look for the terms in the texts, where these are more than one sample.
    """
    settings = settings or ClusterSettings()
    keys = [(item.text, item.added, item.removed) for item in described]
    groups = _Groups.of({item.text for item in described}, embedder, settings, workers)
    found = {
        key: groups.of_text(text, feature_scores(added, removed))
        for key in dict.fromkeys(keys)
        for text, added, removed in (key,)
    }
    return groups.clustering([found[key] for key in keys], [item.text for item in described])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Distinct texts with scores, communities, and the strategies found beside the known ones.

    ``found`` maps a community to the strategy it became; communities that belong to known strategies are not in it.
    """

    settings: ClusterSettings
    row_of: dict[str, int]
    scores: Vectors
    labels: Labels
    found: dict[int, StrategyNode]

    @classmethod
    def of(cls, texts: Iterable[str], embedder: Embedder, settings: ClusterSettings, workers: int = 1) -> _Groups:
        unique = sorted(set(texts), key=_order)
        lots = [unique[start : start + settings.sample] for start in range(0, len(unique), settings.sample)] or [[]]
        examples = prototypes(embedder)
        readings = _readings(lots, workers)
        head = represent(next(readings), embedder, settings.term_weight, examples)
        members = communities(head.vectors, settings)
        middle = centres(head.vectors, members)
        scores, labels = [head.scores], [members]
        for reading in readings:
            # Only scores are kept of what is not in the sample: vectors of half a million texts are gigabytes.
            part = represent(reading, embedder, settings.term_weight, examples)
            scores.append(part.scores)
            labels.append(assign(part.vectors, middle, settings.cohesion))
        together = np.concatenate(labels)
        return cls(
            settings=settings,
            row_of={text: row for row, text in enumerate(unique)},
            scores=_with_communities(np.concatenate(scores), together, settings.community_weight),
            labels=together,
            found=_found(lots[0], head, members, settings),
        )

    def of_text(self, text: str, features: Vectors | None) -> Assignment:
        row = self.row_of[text]
        node = self.found.get(int(self.labels[row]))
        scores = self.scores[row]
        if features is not None:
            scores = scores + np.float32(self.settings.feature_weight) * features
        best = int(scores.argmax())
        score = round(float(scores[best]), 6)
        if score < self.settings.known:
            if node is None:
                return _NOWHERE
            return Assignment(direction_id=node.direction_id, strategy_id=node.strategy_id, score=score)
        return Assignment(direction_id=seeds()[best].direction_id, strategy_id=seeds()[best].strategy_id, score=score)

    def clustering(self, assignments: Sequence[Assignment], texts: Sequence[str]) -> Clustering:
        """The record: assignments with the nodes that they use."""
        sizes = Counter(item.strategy_id for item in assignments)
        best: dict[str, tuple[float, str]] = {}
        for item, text in zip(assignments, texts, strict=True):
            if item.score > best.get(item.strategy_id, (-1.0, ""))[0]:
                best[item.strategy_id] = (item.score, text)
        known = {seed.strategy_id: seed for seed in seeds()}
        others = {node.strategy_id: node for node in self.found.values()}
        nodes = []
        for strategy_id, size in sorted(sizes.items()):
            origin = known.get(strategy_id) or others.get(strategy_id)
            nodes.append(
                StrategyNode(
                    strategy_id=strategy_id,
                    direction_id=origin.direction_id if origin else UNCLASSIFIED,
                    name=origin.name if origin else "Unclassified",
                    description=origin.description if origin else "Texts that fit no strategy and no group.",
                    size=size,
                    seeded=strategy_id in known,
                    example=best[strategy_id][1],
                )
            )
        used = sorted({node.direction_id for node in nodes})
        return Clustering(
            assignments=tuple(assignments),
            directions=tuple(_direction(direction_id) for direction_id in used),
            strategies=tuple(nodes),
        )


def _readings(lots: Sequence[Sequence[str]], workers: int) -> Iterator[Reading]:
    """What each lot of texts says, in order; one after the other in a process that may have none of its own."""
    if min(workers, len(lots)) < 2 or multiprocessing.current_process().daemon:
        yield from map(read_texts, lots)
        return
    with ProcessPoolExecutor(min(workers, len(lots)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(read_texts, lots)


def _order(text: str) -> str:
    """Order by hash: which texts come into a sample does not depend on the others."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _with_communities(scores: Vectors, labels: Labels, share: float) -> Vectors:
    """Mix into each text's scores the mean scores of its community."""
    mixed = scores.copy()
    for number in range(int(labels.max(initial=NONE)) + 1):
        members = labels == number
        mixed[members] = (1 - share) * scores[members] + share * scores[members].mean(axis=0)
    return mixed


def _found(
    texts: Sequence[str], known: Represented, labels: Labels, settings: ClusterSettings
) -> dict[int, StrategyNode]:
    """Strategies made of communities that no known strategy claims."""
    found: dict[int, StrategyNode] = {}
    for number in range(int(labels.max(initial=NONE)) + 1):
        members = np.flatnonzero(labels == number)
        mean = known.scores[members].mean(axis=0)
        if float(mean.max()) < settings.known:
            found[number] = found_strategy([texts[int(row)] for row in members], known.vectors[members], mean)
    return found


def _direction(direction_id: str) -> DirectionNode:
    node = seed_directions().get(direction_id)
    if node is not None:
        return node
    return DirectionNode(direction_id=direction_id, name="Unclassified", description="Belongs to no known direction.")
