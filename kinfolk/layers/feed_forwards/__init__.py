"""Axis FeedForward: dense and gated MLPs, mixtures of experts, product-key memory."""
