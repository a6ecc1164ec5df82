"""One file for each branch of checkpoints."""
