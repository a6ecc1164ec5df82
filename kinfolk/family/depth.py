"""LayerDrop and reversible layers: relatives that run their parent's layers otherwise."""

from typing import Any

from kinfolk.family.assembly import with_depth
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.models.depth.layer_drop import LayerDrop
from kinfolk.models.depth.reversible import Reversible


@relative(
    "layer-drop",
    parent="vanilla-pre",
    paper="Fan et al. 2019, Reducing Transformer Depth on Demand with Structured Dropout, arXiv:1909.11556",
    changes="whole layers are left out at random while it learns, so that it can do with fewer later",
)
def layer_drop(*, rate: float = 0.2, **numbers: Any) -> Recipe:
    """Section 3; a smaller model is one with fewer numbers in `model.encoder.order`."""
    recipe = vanilla_pre(**numbers)
    model = with_depth(recipe.model, lambda stack: LayerDrop.of(stack, rate))
    return recipe.replace(name="layer-drop", model=model)


@relative(
    "reversible",
    parent="gpt2",
    year=2020,
    paper="Gomez et al. 2017, The Reversible Residual Network, arXiv:1707.04585; Kitaev et al. 2020, arXiv:2001.04451",
    changes="the stream is two, so that inputs are found again from outputs and nothing is kept for depth",
)
def reversible(**numbers: Any) -> Recipe:
    """Section 3 of the Reformer's paper, with the attention of its parent."""
    recipe = gpt2(**numbers)
    return recipe.replace(name="reversible", model=with_depth(recipe.model, Reversible.of))
