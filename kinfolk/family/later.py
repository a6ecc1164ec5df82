"""Kinds that no relative is born with and a trained model may come to; they are known before a file can name them."""

from kinfolk.layers import added, maps, pruned, vector_head
from kinfolk.objectives import distil, imitate, several

LATER = (added, maps, pruned, vector_head, distil, imitate, several)
