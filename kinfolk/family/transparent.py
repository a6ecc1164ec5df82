"""Transparent attention: a decoder that attends to all layers of its encoder (Bapna et al. 2018)."""

from typing import Any

from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.models.transparent import Transparent


@relative(
    "transparent",
    parent="vanilla-pre",
    paper="Bapna et al. 2018, Training Deeper NMT Models with Transparent Attention, arXiv:1808.07561",
    changes="each layer of the decoder looks at a learned mixture of all layers of the encoder",
)
def transparent(**numbers: Any) -> Recipe:
    """All else is as it was: gradients reach every layer of the encoder directly."""
    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="transparent", model=recipe.model.replace(bridge=Transparent()))
