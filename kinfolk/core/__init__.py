"""What the rest is built on. Nothing here knows what a Transformer is."""
