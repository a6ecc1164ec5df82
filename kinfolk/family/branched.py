"""Weighted Transformer: heads pass through a feed-forward before they are added up."""

from typing import Any

from kinfolk.family.assembly import with_depth
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.mixers.weighted_heads import Branched
from kinfolk.layers.part import FeedForward, Mixer
from kinfolk.models.block import Block
from kinfolk.models.model import Model


@relative(
    "weighted",
    parent="vanilla",
    paper="Ahmed et al. 2017, Weighted Transformer Network for Machine Translation, arXiv:1711.02132",
    changes="every head passes through the feed-forward by itself, and learned shares add the heads up",
)
def weighted(**numbers: Any) -> Recipe:
    """Looking and thinking become one part, in a decoder one for each of its two attentions."""
    recipe = vanilla(**numbers)
    return recipe.replace(name="weighted", model=with_branches(recipe.model))


def with_branches(model: Model) -> Model:
    """Let every head of every attention think by itself."""

    def branched(block: Block) -> Block:
        (think,) = (part for part in block.parts if isinstance(part, FeedForward))
        looks = (part for part in block.parts if isinstance(part, Mixer))
        return block.replace(parts=tuple(Branched(look=look, think=think) for look in looks))

    return with_depth(model, lambda stack: stack.replace(blocks=tuple(map(branched, stack.blocks))))
