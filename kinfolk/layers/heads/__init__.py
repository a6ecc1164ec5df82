"""Axis Head: language model, classification, tagging, span, policy and other output heads."""
