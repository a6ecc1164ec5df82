"""Engines: what runs a model for the decoding loop. Each is one file that registers itself by being defined."""
