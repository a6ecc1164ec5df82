"""Measures (metrics): their definitions, and the tallies that some are computed from."""
