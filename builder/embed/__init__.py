"""Texts to unit vectors: a sentence-transformers model, a model-free encoder, a cache around either."""

from builder.embed.cache import CachedEmbedder
from builder.embed.hashing import HashingEmbedder
from builder.embed.named import HASHING, named_embedder
from builder.embed.protocol import Embedder, Vectors
from builder.embed.transformer import DEFAULT_MODEL, SentenceTransformerEmbedder

__all__ = [
    "DEFAULT_MODEL",
    "HASHING",
    "CachedEmbedder",
    "Embedder",
    "HashingEmbedder",
    "SentenceTransformerEmbedder",
    "Vectors",
    "named_embedder",
]
