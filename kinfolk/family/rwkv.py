"""RWKV-6 and RWKV-7: recurrent decoders of time mixing and channel mixing."""

from typing import Any

from kinfolk.family.assembly import stack
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.mixers.rwkv import ChannelMix, Rwkv6, Rwkv7
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.part import Mixer
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.depth.skips import ShareValues


def _mixing(name: str, mixers: list[Mixer], think: ChannelMix, **numbers: Any) -> Recipe:
    """Return a decoder of time mixing and channel mixing, with a norm behind the embedding."""
    recipe, norm = llama(n_layers=len(mixers), n_heads=1, **numbers), LayerNorm()
    blocks = tuple(Block(parts=(mixer, think), residual=PreNorm(norm=norm)) for mixer in mixers)
    decoder = stack(blocks[0], len(blocks)).replace(blocks=blocks, norm=norm)
    return recipe.replace(name=name, model=recipe.model.replace(embedding=Tokens(norm=norm), decoder=decoder))


def rank(width: int, factor: float, power: float = 0.5) -> int:
    """Return the rank of a map for a width as the released code has it: a multiple of 32."""
    return max(32, round(factor * width**power / 32) * 32)


@relative(
    "rwkv6",
    parent="gla",
    year=2024,
    paper="Peng et al. 2024, Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence, arXiv:2404.05892",
    topology="decoder",
    causal=True,
    changes="every map reads a mix of a token and the one before it, with shares made from both; a bonus for the "
    "present token; channel mixing in the place of the feed-forward",
)
def rwkv6(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 32,
    d_ff: int = 7168,
    vocab_size: int = 65536,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Section 4: the 1.6B model, heads of width 64, channel mixing 3.5 times as wide as the model."""
    mixer = Rwkv6(n_heads=n_heads)
    size = {"d_model": d_model, "vocab_size": vocab_size, "max_len": max_len}
    return _mixing("rwkv6", [mixer] * n_layers, ChannelMix(d_ff=d_ff, gate="sigmoid"), **size, **numbers)


@relative(
    "rwkv7",
    parent="rwkv6",
    year=2025,
    paper='Peng et al. 2025, RWKV-7 "Goose" with Expressive Dynamic State Evolution, arXiv:2503.14456',
    topology="decoder",
    causal=True,
    changes="the state is corrected by a generalised delta rule with a rate for each channel; values lean on those of "
    "the first layer",
)
def rwkv7(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 32,
    d_ff: int = 8192,
    vocab_size: int = 65536,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Section 4: the 1.5B model, heads of width 64."""
    ranks = {"decay_rank": rank(d_model, 1.8), "rate_rank": rank(d_model, 1.8), "gate_rank": rank(d_model, 0.6, 0.8)}
    first = Rwkv7(n_heads=n_heads, **ranks)
    mixers: list[Mixer] = [first, *[first.replace(value_rank=rank(d_model, 1.3))] * (n_layers - 1)]
    size = {"d_model": d_model, "vocab_size": vocab_size, "max_len": max_len}
    recipe = _mixing("rwkv7", mixers, ChannelMix(d_ff=d_ff), **size, **numbers)
    decoder = recipe.model.decoder
    assert decoder is not None
    return recipe.replace(model=recipe.model.replace(decoder=decoder.wrap(ShareValues())))
