"""Splits: sequences, pairs and labelled examples that training and evaluation read."""
