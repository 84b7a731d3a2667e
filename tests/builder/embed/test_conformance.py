"""What every embedder must hold to; a new one joins by the fixture ``embedder``."""

from __future__ import annotations

import numpy as np
import pytest

from builder.embed.encoders import Embedder

TEXTS = (
    "Load tiles into shared memory and reuse them",
    "Unroll the inner loop by four",
    "use warp shuffles for the reduction " * 12,
    "tile the loop " * 11,
    "tile the loop " * 30,
    "",
    "向量化访存",
)


def test_it_is_an_embedder(embedder: Embedder) -> None:
    assert embedder.name
    assert len(embedder.sha256) == 64


def test_there_is_one_unit_vector_a_text(embedder: Embedder) -> None:
    vectors = embedder.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape[0] == len(TEXTS)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-4)


def test_no_texts_give_no_rows_of_the_same_width(embedder: Embedder) -> None:
    assert embedder.encode([]).shape == (0, embedder.encode(["x"]).shape[1])


def test_a_vector_does_not_depend_on_the_texts_beside_it(embedder: Embedder) -> None:
    together = embedder.encode(TEXTS)
    alone = np.vstack([embedder.encode([text]) for text in TEXTS])
    assert np.array_equal(together, alone)


def test_order_and_repetition_do_not_matter(embedder: Embedder) -> None:
    vectors = embedder.encode([TEXTS[1], TEXTS[0], TEXTS[1]])
    assert np.array_equal(vectors[0], vectors[2])
    assert np.array_equal(vectors[1], embedder.encode(TEXTS)[0])


def test_a_paraphrase_is_nearer_than_another_subject(embedder: Embedder) -> None:
    tiles, paraphrase, other = embedder.encode(
        [
            "reuse tiles kept in shared memory",
            "load tiles into shared memory for reuse",
            "fix the missing header in the source",
        ]
    )
    assert tiles @ paraphrase > tiles @ other
