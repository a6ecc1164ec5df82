"""Axis Embedding: token, patch, pixel and adaptive embeddings."""
