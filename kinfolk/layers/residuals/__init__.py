"""Axis Residual: residual connections and gates."""
