"""The family: one file per branch, each relative about ten lines.

Importing this package imports no tensor library (`kin family` draws the tree without one): the tree is read by
`catalogue`, and the functions below it are imported when `registry` first needs them.
"""
