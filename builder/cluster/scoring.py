"""Represent texts and score them against the known strategies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from builder.cluster.taxonomy import seeds
from builder.describe.clauses import clauses, weight_at
from builder.embed import Embedder, Vectors
from builder.glossary import find_terms, normalise, terms

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


class Reading(NamedTuple):
    """What texts say by themselves, before an encoder sees them.

    Attributes:
        texts: in canonical words, for the encoder.
        weights: see :func:`term_weights`; float32 [texts, terms].
    """

    texts: list[str]
    weights: Vectors


def read_texts(texts: Sequence[str]) -> Reading:
    """Canonical words and glossary terms of ``texts``; independent of all other texts."""
    weights = np.stack([term_weights(text) for text in texts]) if texts else np.zeros((0, len(terms())), np.float32)
    return Reading([normalise(text) for text in texts], weights)


def represent(reading: Reading, embedder: Embedder, term_weight: float, examples: Vectors | None = None) -> Represented:
    """Encode texts and score them against every known strategy.

    A score is the cosine to the strategy's example wordings plus ``term_weight`` times the weight of its terms in
    the text, where terms count by the clause they stand in (deed before purpose, early before late).

    Args:
        examples: what :func:`prototypes` gives, for callers that represent several lots of texts.
    """
    known = prototypes(embedder) if examples is None else examples
    weights = reading.weights
    encoded = embedder.encode(reading.texts)
    scores = encoded @ known.T + np.float32(term_weight) * _term_scores(weights)
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
