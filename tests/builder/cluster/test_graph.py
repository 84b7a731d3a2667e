from __future__ import annotations

import numpy as np

from builder.cluster.graph import NONE, assign, centres, communities
from builder.cluster.record import ClusterSettings
from builder.embed.encoders import Vectors

LOOSE = ClusterSettings(neighbours=5, min_similarity=0.3, min_size=3, cohesion=0.5, resolution=1.0)


def blobs(groups: int, each: int, noise: int = 0) -> Vectors:
    """``groups`` tight groups of ``each`` unit vectors, then ``noise`` vectors orthogonal to all."""
    rng = np.random.default_rng(1)
    vectors = np.zeros((groups * each + noise, groups + noise + 8), dtype=np.float32)
    for row in range(groups * each):
        vectors[row, row // each] = 1.0
        vectors[row, -8:] = rng.normal(scale=0.05, size=8)
    for row in range(noise):
        vectors[groups * each + row, groups + row] = 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)


def test_tight_groups_are_communities() -> None:
    labels = communities(blobs(4, 6), LOOSE)
    assert len({tuple(labels[start : start + 6]) for start in range(0, 24, 6)}) == 4
    assert all(len(set(labels[start : start + 6].tolist())) == 1 for start in range(0, 24, 6))


def test_lonely_rows_belong_to_none() -> None:
    labels = communities(blobs(3, 6, noise=4), LOOSE)
    assert (labels[-4:] == NONE).all()
    assert (labels[:-4] != NONE).all()


def test_one_row_has_no_community() -> None:
    assert communities(blobs(1, 1), LOOSE).tolist() == [NONE]


def test_new_rows_join_the_nearest_centre_or_none() -> None:
    vectors = blobs(3, 6, noise=1)
    labels = communities(vectors, LOOSE)
    joined = assign(vectors[[0, 7, -1]], centres(vectors, labels), LOOSE.cohesion)
    assert joined.tolist() == [labels[0], labels[7], NONE]
