"""Axis Norm: layer norm, RMSNorm, ScaleNorm, and where norms are placed."""
