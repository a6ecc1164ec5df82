"""Axis Position: absolute, relative and rotary position encodings."""
