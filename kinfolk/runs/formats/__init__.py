"""Checkpoint formats of Hugging Face's model families, one file for each branch."""
