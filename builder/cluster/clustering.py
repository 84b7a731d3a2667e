"""From texts, or raw transitions, to strategies and directions."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.codec import encode
from artifacts.memory.records import Direction
from builder.cluster.graph import NONE, Communities, assign, centres, communities
from builder.cluster.record import NOTHING_YET, Action, ClusterSettings, Labels, StrategyNode
from builder.cluster.scoring import (
    Represented,
    feature_scores,
    prototypes,
    represent,
    seed_directions,
    seeds,
    taxonomy_sha256,
)
from builder.describe.glossary import find_terms, glossary_sha256, split_identifiers, terms
from builder.describe.plan import intent
from builder.embed.encoders import Embedder, Vectors

_NEAR = 0.35
"""Mean anchor score from which a found strategy is put under the direction of the nearest known one."""

MENDING = frozenset({"build_fix", "correctness_fix"})
"""Directions of repairs."""
_WORD = re.compile(r"[a-z][a-z0-9_+-]{3,}")
FOUND = "found_"
"""Beginning of the ids of directions that no taxonomy knew."""
LONGEST_NAME = 48
_COMMON = frozenset(
    {
        *("with", "that", "this", "from", "into", "which", "each", "their", "there", "will", "have", "been", "more"),
        *("than", "then", "before", "after", "within", "while", "must", "should", "also", "other", "next", "same"),
        *("kernel", "code", "file", "implement", "implementation", "ensure", "review", "update", "using", "correct"),
        *("function", "functions", "cuda", "current", "existing", "given", "best", "make", "sure", "please", "modify"),
        *("introduce", "drop", "torch", "replace", "replaced", "replacing", "tune", "becomes", "instead", "change"),
        *("changes", "changed", "only", "every", "them", "they", "when", "where", "what", "over", "both", "same"),
    }
)


def found_strategy(texts: Sequence[str], vectors: Vectors, mean_scores: Vectors) -> StrategyNode:
    """Name a community from its contents: glossary terms first, else its most telling words.

    ``vectors`` is float32 [texts, d]; ``mean_scores`` float32 [known strategies].
    """
    centre = vectors.mean(axis=0)
    example = texts[int(np.argmax(vectors @ centre))]
    words = _topics(texts)
    name = _name(words, example)
    nearest = seeds()[int(mean_scores.argmax())]
    slug = "_".join(re.findall(r"[a-z0-9]+", name.lower()))[:40]
    mark = hashlib.sha256(example.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    near = float(mean_scores.max()) >= _NEAR
    direction_id = nearest.direction_id if near else f"{FOUND}{slug}_{mark}"
    return StrategyNode(
        strategy_id=f"{direction_id}.{slug}_{mark}",
        direction_id=direction_id,
        name=name,
        description=f"Found in the texts: {', '.join(words[:5])}." if words else f"Texts like: {example[:100]}",
    )


def _name(words: Sequence[str], example: str) -> str:
    """At most two topics, or the first clause of the example, cut between words: what an engineer would call it."""
    said = " and ".join(words[:2]) or re.split(r"[.;,:(]", " ".join(split_identifiers(example).split()))[0]
    if len(said) > LONGEST_NAME:
        said = said[:LONGEST_NAME].rsplit(" ", 1)[0]
    return said[:1].upper() + said[1:]


def _topics(texts: Sequence[str]) -> list[str]:
    """Phrases of glossary terms in more than half of the texts, then words in as many, most frequent first."""
    phrases = {term.name: term.phrase for term in terms()}
    found = Counter(phrases[name] for text in texts for name in find_terms(text))
    words = Counter(word for text in texts for word in set(_WORD.findall(text.lower())) - _COMMON)
    half = len(texts) / 2
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    rest = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    return [name for name, count in (*ranked, *rest) if count > half]


PLAIN_TEXTS = ClusterSettings(min_similarity=0.75)
"""Settings for plain texts: without a code difference their neighbours are worth more, so they are linked earlier."""
_NOWHERE = ("", "")


def cluster_texts(texts: Sequence[str], embedder: Embedder, settings: ClusterSettings = PLAIN_TEXTS) -> Labels:
    """Group plain strategy texts; equal intents are looked at once."""
    meant = {text: intent(text) or text.strip() for text in dict.fromkeys(texts)}
    groups = _Groups.of(meant.values(), embedder, settings)
    found = {text: groups.of_text(meaning, None) for text, meaning in meant.items()}
    return groups.labelled([found[text] for text in texts])


def cluster(actions: Sequence[Action], embedder: Embedder, settings: ClusterSettings | None = None) -> Labels:
    """Group steps by their texts, with the code difference as further evidence."""
    groups = _Groups.of({item.text for item in actions}, embedder, settings or ClusterSettings())
    return groups.labelled(
        [groups.of_text(item.text, feature_scores(item.added, item.removed), mends=item.mends) for item in actions]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Distinct texts with scores, communities, and the strategies found beside the known ones.

    ``found`` maps a community to the strategy it became; communities that belong to known strategies are not in it.
    """

    settings: ClusterSettings
    row_of: dict[str, int]
    scores: Vectors
    labels: Communities
    found: dict[int, StrategyNode]

    @classmethod
    def of(cls, texts: Iterable[str], embedder: Embedder, settings: ClusterSettings) -> _Groups:
        unique = sorted(set(texts), key=_order)
        lots = [unique[start : start + settings.sample] for start in range(0, len(unique), settings.sample)] or [[]]
        examples = prototypes(embedder)
        head = represent(lots[0], embedder, settings.term_weight, examples)
        members = communities(head.vectors, settings)
        middle = centres(head.vectors, members)
        scores, labels = [head.scores], [members]
        for lot in lots[1:]:
            # Only scores are kept of what is not in the sample: vectors of half a million texts are gigabytes.
            part = represent(lot, embedder, settings.term_weight, examples)
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

    def of_text(self, text: str, features: Vectors | None, *, mends: bool = True) -> tuple[str, str]:
        """Direction and strategy."""
        row = self.row_of[text]
        scores = self.scores[row]
        if features is not None:
            scores = scores + np.float32(self.settings.feature_weight) * features
        if not mends:
            scores = np.where(_mending(), np.float32(-1.0), scores)
        best = int(scores.argmax())
        claimed = round(float(scores[best]), 6) >= self.settings.known
        node = seeds()[best] if claimed else self.found.get(int(self.labels[row]))
        return _NOWHERE if node is None else (node.direction_id, node.strategy_id)

    def labelled(self, assigned: Sequence[tuple[str, str]]) -> Labels:
        """The record: what each was assigned, with the nodes that are used."""
        known: dict[str, StrategyNode] = {node.strategy_id: node for node in (*self.found.values(), *seeds())}
        nodes = tuple(known[name] for name in sorted({strategy_id for _, strategy_id in assigned} - {""}))
        return Labels(
            direction_ids=[direction_id for direction_id, _ in assigned],
            strategy_ids=[strategy_id for _, strategy_id in assigned],
            directions=tuple(
                seed_directions().get(name) or _direction(next(node for node in nodes if node.direction_id == name))
                for name in sorted({node.direction_id for node in nodes})
            ),
            strategies=nodes,
        )


@functools.cache
def _mending() -> npt.NDArray[np.bool_]:
    """Known strategies that mend what failed: no step from a correct parent is one of them."""
    return np.array([seed.direction_id in MENDING for seed in seeds()])


def _order(text: str) -> str:
    """Order by hash: which texts come into a sample does not depend on the others."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _with_communities(scores: Vectors, labels: Communities, share: float) -> Vectors:
    """Mix into each text's scores the mean scores of its community."""
    mixed = scores.copy()
    for number in range(int(labels.max(initial=NONE)) + 1):
        members = labels == number
        mixed[members] = (1 - share) * scores[members] + share * scores[members].mean(axis=0)
    return mixed


def _found(
    texts: Sequence[str], known: Represented, labels: Communities, settings: ClusterSettings
) -> dict[int, StrategyNode]:
    """Strategies made of communities that no known strategy claims."""
    found: dict[int, StrategyNode] = {}
    for number in range(int(labels.max(initial=NONE)) + 1):
        members = np.flatnonzero(labels == number)
        mean = known.scores[members].mean(axis=0)
        if float(mean.max()) < settings.known:
            found[number] = found_strategy([texts[int(row)] for row in members], known.vectors[members], mean)
    return found


def _direction(node: StrategyNode) -> Direction:
    """The direction that a strategy which belongs to no known one makes of its own."""
    return Direction(direction_id=node.direction_id, name=node.name, description=node.description, effect=NOTHING_YET)


def identity(settings: ClusterSettings) -> dict[str, Any]:
    """All that decides a clustering beside texts and encoder, for manifests: settings and hashes of the data files."""
    return {**encode(settings), "glossary_sha256": glossary_sha256(), "taxonomy_sha256": taxonomy_sha256()}


def labelled(table: pa.Table, embedder: Embedder, settings: ClusterSettings) -> Labels:
    """Directions and strategies of raw transitions; equal actions are looked at once, however many steps took them."""
    actions, rows = distinct_actions(table)
    found = cluster(actions, embedder, settings)
    return replace(
        found,
        direction_ids=list(np.array(found.direction_ids, object)[rows]),
        strategy_ids=list(np.array(found.strategy_ids, object)[rows]),
    )


def distinct_actions(table: pa.Table) -> tuple[tuple[Action, ...], list[int]]:
    """Distinct actions in order of first use, and for each row the number of its action."""
    number: dict[tuple[str, str, str, bool], int] = {}
    names = ("plan", "added", "removed")
    columns = [table[name].cast(pa.large_string()).combine_chunks().to_pylist() for name in names]
    columns.append(table["repair"].to_pylist())
    rows = [number.setdefault(key, len(number)) for key in zip(*columns, strict=True)]
    actions = tuple(
        Action(text, frozenset(added.split()), frozenset(removed.split()), mends)
        for text, added, removed, mends in number
    )
    return actions, rows
