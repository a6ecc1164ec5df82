"""Batches: a pure function of (seed, step)."""
