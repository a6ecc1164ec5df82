"""Relatives that change what heads do: each is a parent whose heads talk, or learn how far to look."""

from typing import Any

from kinfolk.family.assembly import with_mixer
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.talk import Talking


@relative(
    "talking-heads",
    parent="gpt2",
    year=2020,
    paper="Shazeer et al. 2020, Talking-Heads Attention, arXiv:2003.02436",
    topology="decoder",
    causal=True,
    changes="learned maps mix the scores of all heads before the softmax, and their weights after it",
)
def talking_heads(**numbers: Any) -> Recipe:
    """Section 4, with as many heads of keys and values as of the softmax."""
    recipe = gpt2(**numbers)
    return recipe.replace(
        name="talking-heads", model=with_mixer(recipe.model, lambda look: look.replace(talk=Talking()))
    )
