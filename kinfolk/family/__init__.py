"""The family: one file per branch, each relative about ten lines.

Importing this package imports no tensor library (`kin family` draws the tree without one), so the names it
offers are looked up when they are asked for.
"""
