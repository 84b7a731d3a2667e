"""From the name of an encoder, as a person or a manifest writes it, to the encoder."""

from __future__ import annotations

import re

from builder.embed.hashing import HashingEmbedder
from builder.embed.protocol import Embedder
from builder.embed.transformer import SentenceTransformerEmbedder

HASHING = "hashing"
"""Name of the encoder without a model."""
_SIZED = re.compile(rf"{HASHING}-(\d{{1,5}})")


def named_embedder(name: str) -> Embedder:
    """The encoder of that name: ``hashing``, ``hashing-<dimensions>``, a local folder or a model."""
    if name == HASHING:
        return HashingEmbedder()
    sized = _SIZED.fullmatch(name)
    return HashingEmbedder(dimensions=int(sized.group(1))) if sized else SentenceTransformerEmbedder(name)
