"""Softmax attention: the one executor and its paths."""
