from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from artifacts.errors import ArtifactError
from builder.embed.cache import CachedEmbedder
from builder.embed.encoders import HashingEmbedder, Vectors


@dataclass
class CountingEmbedder:
    """Counts what reaches it."""

    asked: list[str] = field(default_factory=list)
    name: str = "counting"
    sha256: str = "0" * 64

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.asked.extend(texts)
        return HashingEmbedder(dimensions=16).encode(texts)


def test_a_text_is_encoded_once_also_across_processes(tmp_path: Path) -> None:
    inner = CountingEmbedder()
    first = CachedEmbedder(inner=inner, path=tmp_path / "v.sqlite").encode(["a", "b", "a"])
    again = CachedEmbedder(inner=inner, path=tmp_path / "v.sqlite").encode(["b", "c"])
    assert inner.asked == ["a", "b", "c"]
    assert np.array_equal(first[1], again[0])


def test_vectors_of_another_model_are_not_taken(tmp_path: Path) -> None:
    CachedEmbedder(inner=CountingEmbedder(), path=tmp_path / "v.sqlite").encode(["a"])
    other = CountingEmbedder(sha256="1" * 64)
    CachedEmbedder(inner=other, path=tmp_path / "v.sqlite").encode(["a"])
    assert other.asked == ["a"]


def test_more_texts_than_one_query_holds_come_back_in_order(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1200)]
    cached = CachedEmbedder(inner=HashingEmbedder(dimensions=16), path=tmp_path / "v.sqlite")
    cached.encode(texts[:700])
    assert np.array_equal(cached.encode(texts), HashingEmbedder(dimensions=16).encode(texts))


def test_a_damaged_cache_is_named_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(ArtifactError, match="delete the file"):
        CachedEmbedder(inner=HashingEmbedder(), path=path).encode(["a"])
