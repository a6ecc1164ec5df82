"""Attention patterns: which query may attend to which key, as data."""
