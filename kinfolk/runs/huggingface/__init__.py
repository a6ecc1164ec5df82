"""Import and export of Hugging Face checkpoints, without their libraries."""
