"""Training objectives: corrupt a batch, score an output; tasks and metrics."""
