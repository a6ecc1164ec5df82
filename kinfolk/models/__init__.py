"""Transformer models: blocks of parts, stacks of blocks, models of stacks."""
