"""Decoder-only summarisation of long documents: Transformer-D and T-DMCA (Liu et al. 2018)."""

from kinfolk.family.compressed import dmca
from kinfolk.family.experts import with_experts
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.feed_forwards.experts import NoisyTopK
from kinfolk.layers.mixers.attention import CrossAttention
from kinfolk.models.stack import Stack
from kinfolk.objectives.causal import CausalLM


@relative(
    "transformer-d",
    parent="vanilla",
    paper="Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences, arXiv:1801.10198",
    topology="decoder",
    changes="no encoder: source, separator and target are one sequence, and half of the parameters are gone",
)
def transformer_d(*, max_len: int = 4000, **numbers: int | float) -> Recipe:
    """Section 4.2.3; of a pair the target's tokens are scored, of a text all."""
    recipe = vanilla(max_len=max_len, **numbers)  # type: ignore[arg-type]
    depth = recipe.model.decoder
    assert isinstance(depth, Stack)
    blocks = tuple(
        block.replace(parts=tuple(part for part in block.parts if not isinstance(part, CrossAttention)))
        for block in depth.blocks
    )
    model = recipe.model.replace(encoder=None, decoder=depth.replace(blocks=blocks))
    return recipe.replace(name="transformer-d", model=model, objective=CausalLM())


@relative(
    "t-dmca",
    parent="dmca",
    paper="Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences, arXiv:1801.10198",
    changes="one feed-forward is a mixture of many experts",
)
def t_dmca(*, n_layers: int = 5, n_experts: int = 128, **numbers: int | float) -> Recipe:
    """Section 5.2: the largest model, with experts in the middle layer; without them it is `dmca`."""
    recipe = dmca(n_layers=n_layers, **numbers)  # type: ignore[arg-type]
    # every n-th, counted so that exactly the middle layer is one
    model = with_experts(recipe.model, NoisyTopK(), n_experts, 0.0, every=n_layers // 2 + 1)
    return recipe.replace(name="t-dmca", model=model)
