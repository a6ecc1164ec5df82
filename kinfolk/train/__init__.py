"""One training loop, and what it needs: steps, checkpoints, metrics, precision, several processes."""
