"""Folders of other people's checkpoints, in and out, without their libraries."""
