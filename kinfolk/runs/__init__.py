"""Trained models on disk: run folders, checkpoints, and the layouts of Hugging Face."""
