"""Talking heads and adaptive attention spans: relatives that change attention heads."""

from typing import Any

from kinfolk.family.assembly import with_mixer
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.adaptive_span import AdaptiveSpan, DynamicSpan, Fading
from kinfolk.layers.mixers.talking_heads import Talking


@relative(
    "talking-heads",
    parent="gpt2",
    paper="Shazeer et al. 2020, Talking-Heads Attention, arXiv:2003.02436",
    changes="learned maps mix the scores of all heads before the softmax, and their weights after it",
)
def talking_heads(**numbers: Any) -> Recipe:
    """As many heads of keys and of values as of the softmax."""
    recipe = gpt2(**numbers)
    return recipe.replace(
        name="talking-heads", model=with_mixer(recipe.model, lambda look: look.replace(talk=Talking()))
    )


@relative(
    "adaptive-span",
    parent="gpt2",
    paper="Sukhbaatar et al. 2019, Adaptive Attention Span in Transformers, arXiv:1905.07799",
    changes="each head learns how far back it looks, and pays for the distance",
)
def adaptive_span(*, max_span: int = 0, ramp: int = 32, penalty: float = 5e-7, **numbers: Any) -> Recipe:
    """0 means max_len for `max_span`. Positions are those of GPT-2, and a token sees itself."""
    span = AdaptiveSpan(max_span=max_span, ramp=ramp, penalty=penalty)
    return _spanned(gpt2(**numbers), "adaptive-span", span)


@relative(
    "dynamic-span",
    parent="adaptive-span",
    paper="Sukhbaatar et al. 2019, Adaptive Attention Span in Transformers, arXiv:1905.07799",
    changes="each head decides at each token how far back it looks",
)
def dynamic_span(*, max_span: int = 0, ramp: int = 32, penalty: float = 5e-7, **numbers: Any) -> Recipe:
    """The span of a head is a function of the token that looks."""
    span = DynamicSpan(max_span=max_span, ramp=ramp, penalty=penalty)
    return _spanned(adaptive_span(**numbers), "dynamic-span", span)


def _spanned(recipe: Recipe, name: str, span: Fading) -> Recipe:
    return recipe.replace(name=name, model=with_mixer(recipe.model, lambda look: look.replace(span=span)))
