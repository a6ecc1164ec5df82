"""Axis Depth: how the blocks of a stack run (universal, reversible, funnel, layer drop)."""
