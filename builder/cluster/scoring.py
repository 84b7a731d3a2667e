"""Texts scored against the strategies of the seed taxonomy."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artifacts.memory.records import Direction
from builder.cluster.record import NOTHING_YET, StrategyNode
from builder.describe.glossary import find_terms, normalise, split_identifiers, terms
from builder.describe.plan import clauses, weight_at
from builder.embed.encoders import Embedder, Vectors

_FILE = Path(__file__).with_name("taxonomy.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed(StrategyNode):
    """A known strategy: glossary terms with weights and example wordings that speak for it."""

    terms: Mapping[str, float]
    examples: tuple[str, ...]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.terms) - {term.name for term in terms()})
        if unknown:
            raise ValueError(f"strategy {self.strategy_id}: unknown glossary term {unknown[0]!r}")

    @property
    def features(self) -> frozenset[str]:
        """Code features that its main terms promise."""
        main = {name for name, weight in self.terms.items() if weight >= 0.8}
        return frozenset(feature for term in terms() if term.name in main for feature in term.features)


@functools.cache
def seeds() -> tuple[Seed, ...]:
    """All known strategies, in the order of the file."""
    return tuple(
        Seed(
            strategy_id=f"{direction_id}.{name}",
            direction_id=direction_id,
            name=entry["name"],
            description=entry["description"],
            terms=entry["terms"],
            examples=tuple(entry["examples"]),
        )
        for direction_id, group in _data().items()
        for name, entry in group.items()
        if isinstance(entry, dict)
    )


@functools.cache
def seed_directions() -> Mapping[str, Direction]:
    """Known directions by id."""
    return {
        direction_id: Direction(
            direction_id=direction_id,
            name=group["name"],
            description=group["description"],
            effect=NOTHING_YET,
            resource=group["resource"],
        )
        for direction_id, group in _data().items()
    }


@functools.cache
def taxonomy_sha256() -> str:
    """SHA-256 of the taxonomy file, for manifests."""
    return hashlib.sha256(_FILE.read_bytes()).hexdigest()


@functools.cache
def _data() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


_OTHERS = 0.3
_REPEATS = 3
_REPEAT_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Represented:
    """Texts as numbers.

    Attributes:
        vectors: float32 [texts, d + terms], unit rows: encoder and glossary terms side by side.
        scores: float32 [texts, known strategies].
    """

    vectors: Vectors
    scores: Vectors


def represent(texts: Sequence[str], embedder: Embedder, term_weight: float, examples: Vectors) -> Represented:
    """Encode texts and score them against every known strategy.

    A score is the cosine to the strategy's example wordings plus ``term_weight`` times the weight of its terms in
    the text, where terms count by the clause they stand in (deed before purpose, early before late).

    Args:
        examples: what :func:`prototypes` gives.
    """
    rows = [np.maximum(term_weights(text), term_weights(split_identifiers(text))) for text in texts]
    weights = np.stack(rows) if rows else np.zeros((0, len(terms())), np.float32)
    encoded = embedder.encode([normalise(text) for text in texts])
    scores = encoded @ examples.T + np.float32(term_weight) * _term_scores(weights)
    norms = np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-6)
    joint = np.hstack([encoded, np.float32(term_weight) * weights / norms])
    joint /= np.maximum(np.linalg.norm(joint, axis=1, keepdims=True), 1e-6)
    return Represented(vectors=joint.astype(np.float32), scores=scores.astype(np.float32))


def _term_scores(weights: Vectors) -> Vectors:
    """Strongest term of each strategy in each text plus a share of its others: float32 [texts, strategies].

    Not the plain sum, which would favour strategies that many terms describe.
    """
    scores = np.zeros((len(weights), len(seeds())), dtype=np.float32)
    for column, row in enumerate(_seed_terms()):
        products = weights[:, row > 0] * row[row > 0]
        strongest = products.max(axis=1, initial=0.0)
        scores[:, column] = strongest + np.float32(_OTHERS) * (products.sum(axis=1) - strongest)
    return scores


def term_weights(text: str) -> Vectors:
    """Weight of each glossary term in ``text``: float32 [terms]."""
    found = find_terms(text)
    parts = clauses(text)
    weights = np.zeros(len(terms()), dtype=np.float32)
    for name, starts in found.items():
        at = sorted((weight_at(parts, start) for start in starts), reverse=True)
        weights[_places()[name]] = at[0] + _REPEAT_WEIGHT * sum(at[1 : 1 + _REPEATS])
    return weights


@functools.cache
def _places() -> dict[str, int]:
    return {term.name: index for index, term in enumerate(terms())}


def feature_scores(added: frozenset[str], removed: frozenset[str]) -> Vectors:
    """What a code difference says for each known strategy, 0..1: float32 [known strategies].

    A feature that many strategies promise says little for each; a vanished feature half as much as a new one.
    """
    owners = _feature_owners()
    scores = np.zeros(len(seeds()), dtype=np.float32)
    for names, weight in ((added, 1.0), (removed, 0.5)):
        for name in names:
            indices = owners.get(name, ())
            for index in indices:
                scores[index] += np.float32(weight / len(indices))
    return np.minimum(scores, np.float32(1.0))


@functools.cache
def _feature_owners() -> dict[str, tuple[int, ...]]:
    owners: dict[str, list[int]] = {}
    for index, seed in enumerate(seeds()):
        for feature in sorted(seed.features):
            owners.setdefault(feature, []).append(index)
    return {feature: tuple(indices) for feature, indices in owners.items()}


@functools.cache
def _seed_terms() -> Vectors:
    place = _places()
    matrix = np.zeros((len(seeds()), len(place)), dtype=np.float32)
    for row, seed in enumerate(seeds()):
        for name, weight in seed.terms.items():
            matrix[row, place[name]] = weight
    return matrix


def prototypes(embedder: Embedder) -> Vectors:
    """Mean vector of each strategy's examples and description: float32 [known strategies, d]."""
    wordings = [(*seed.examples, f"{seed.name}. {seed.description}") for seed in seeds()]
    encoded = embedder.encode([normalise(text) for group in wordings for text in group])
    ends = np.cumsum([len(group) for group in wordings])
    means = np.stack([part.mean(axis=0) for part in np.split(encoded, ends[:-1])])
    unit: Vectors = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.float32(1e-6))
    return unit
