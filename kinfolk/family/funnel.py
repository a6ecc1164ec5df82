"""Funnel-Transformer: layers over pooled, ever shorter sequences."""

from typing import Any

from kinfolk.family.assembly import stack, with_mixer
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.relative import XL
from kinfolk.models.depth.funnel import Funnel
from kinfolk.models.stack import Stack


@relative(
    "funnel",
    parent="bert",
    paper="Dai et al. 2020, Funnel-Transformer: Filtering out Sequential Redundancy, arXiv:2006.03236",
    changes="the sequence is pooled twice on the way up; layers at the end see it whole again",
)
def funnel(*, pool: int = 2, n_levels: int = 3, n_top: int = 2, n_layers: int = 12, **numbers: Any) -> Recipe:
    """B4-4-4 and two layers on top; the distances of Transformer-XL, but for the first token; no segments."""
    recipe = masked_only(bert(n_layers=n_layers, **numbers))
    model = with_mixer(recipe.model, lambda look: look.replace(position=XL(biases="per-layer", apart=1)))
    assert isinstance(model.encoder, Stack)
    block, n = model.encoder.blocks[0], min(n_levels, n_layers)
    sizes = [n_layers * (i + 1) // n - n_layers * i // n for i in range(n)]
    levels = tuple(stack(block, size) for size in sizes)
    depth = Funnel(levels=levels, top=stack(block, n_top), pool=pool)
    embedding = Tokens(norm=LayerNorm(eps=1e-12))
    return recipe.replace(name="funnel", model=model.replace(encoder=depth, embedding=embedding))
