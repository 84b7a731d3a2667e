"""Texts to unit vectors: a sentence-transformers model, a model-free encoder, a cache around either."""
