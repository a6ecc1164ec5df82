"""What a model learns from: corrupt a batch, score an output."""
