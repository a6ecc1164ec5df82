"""Kinds that no relative is born with and a trained model may come to; they are known before a file can name them."""

from kinfolk.layers import adapters as added
from kinfolk.layers import linear_maps as maps
from kinfolk.layers import pruned
from kinfolk.layers.heads import vector_head
from kinfolk.models.depth import layer_mix
from kinfolk.objectives import distil, imitate, several

LATER = (layer_mix, added, maps, pruned, vector_head, distil, imitate, several)
