"""Communities of similar texts: mutual nearest neighbours (FAISS) and Louvain (networkx)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from builder.cluster.record import ClusterSettings
from builder.embed.encoders import Vectors

NONE = -1
"""Community of a text that belongs to none."""

Communities = npt.NDArray[np.int64]


def communities(vectors: Vectors, settings: ClusterSettings) -> Communities:
    """Community of each row, numbered from 0 by falling size; :data:`NONE` for rows that fit nowhere.

    Rows are linked when each is among the other's nearest neighbours; Louvain splits that graph. Communities below
    ``min_size`` are dissolved, members far from their centre dropped.
    """
    if len(vectors) < 2:
        return np.full(len(vectors), NONE, dtype=np.int64)
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(len(vectors)))
    graph.add_weighted_edges_from(_mutual_edges(vectors, settings))
    found = nx.community.louvain_communities(graph, resolution=settings.resolution, seed=settings.seed)
    labels = np.full(len(vectors), NONE, dtype=np.int64)
    number = 0
    for members in sorted((sorted(group) for group in found), key=lambda group: (-len(group), group)):
        kept = _cohesive(vectors, np.array(members), settings.cohesion)
        if len(kept) >= settings.min_size:
            labels[kept] = number
            number += 1
    return labels


def centres(vectors: Vectors, labels: Communities) -> Vectors:
    """Unit mean vector of each community: float32 [communities, d]."""
    count = int(labels.max(initial=NONE)) + 1
    means = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    for number in range(count):
        means[number] = vectors[labels == number].mean(axis=0)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.float32(1e-6))
    return means


def assign(vectors: Vectors, middle: Vectors, cohesion: float) -> Communities:
    """Community with the nearest centre for each row, :data:`NONE` below ``cohesion``."""
    labels = np.full(len(vectors), NONE, dtype=np.int64)
    if not len(middle) or not len(vectors):
        return labels
    import faiss

    index = faiss.IndexFlatIP(middle.shape[1])
    index.add(np.ascontiguousarray(middle))
    similarity, nearest = index.search(np.ascontiguousarray(vectors), 1)
    near = similarity[:, 0] >= cohesion
    labels[near] = nearest[near, 0]
    return labels


def _mutual_edges(vectors: Vectors, settings: ClusterSettings) -> list[tuple[int, int, float]]:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.ascontiguousarray(vectors))
    count = min(settings.neighbours + 1, len(vectors))
    similarity, nearest = index.search(np.ascontiguousarray(vectors), count)
    sets = [set(row) for row in nearest.tolist()]
    return [
        (row, other, round(float(value), 6))
        for row in range(len(vectors))
        for value, other in zip(similarity[row].tolist(), nearest[row].tolist(), strict=True)
        if row < other and value >= settings.min_similarity and row in sets[other]
    ]


def _cohesive(vectors: Vectors, members: Communities, cohesion: float) -> Communities:
    centre = vectors[members].mean(axis=0)
    centre /= max(float(np.linalg.norm(centre)), 1e-6)
    kept: Communities = members[vectors[members] @ centre >= cohesion]
    return kept
