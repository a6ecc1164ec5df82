"""What the rest stands on. Nothing here knows what a Transformer is."""
