"""GPT-J, GPT-NeoX, Phi: decoders whose attention and feed-forward run in parallel."""

from typing import Any

from kinfolk.family.assembly import stack
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.norms.normed import Normed
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.ops.patterns.leaves import Causal


def _in_parallel(recipe: Recipe, name: str, block: Block, head: LMHead) -> Recipe:
    model, n_layers = recipe.model, len(recipe.model.decoder.order)  # type: ignore[union-attr]
    decoder = stack(block, n_layers).replace(norm=LayerNorm())
    return recipe.replace(name=name, model=model.replace(embedding=Tokens(), decoder=decoder, head=head))


@relative(
    "gpt-j",
    parent="gpt2",
    paper="Wang and Komatsuzaki 2021, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model",
    changes="attention and feed-forward in parallel behind one norm, rotary positions on a quarter of each head",
)
def gpt_j(
    *,
    d_model: int = 4096,
    n_layers: int = 28,
    n_heads: int = 16,
    d_ff: int = 16384,
    vocab_size: int = 50400,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """The released 6B model; attention has no biases."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = gpt2(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    rotary = Rotary(share=0.25)
    look = Attention(n_heads=n_heads, pattern=Causal(), position=rotary, bias=False, dropout=recipe.model.dropout)
    think = Dense(d_ff=d_ff, activation="gelu-tanh")
    block = Block(parts=(Branches(parts=(look, think)),), residual=PreNorm())
    return _in_parallel(recipe, "gpt-j", block, LMHead(weights="untied", bias=True))


@relative(
    "gpt-neox",
    parent="gpt-j",
    paper="Black et al. 2022, GPT-NeoX-20B: An Open-Source Autoregressive Language Model, arXiv:2204.06745",
    changes="a norm of its own for each of the parallel branches, biases everywhere but in the output layer",
)
def gpt_neox(
    *,
    d_model: int = 6144,
    n_layers: int = 44,
    n_heads: int = 64,
    d_ff: int = 24576,
    vocab_size: int = 50432,
    **numbers: Any,
) -> Recipe:
    """The released 20B model; two norms by an oversight in the code that trained it, as the paper says."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = gpt_j(**size, vocab_size=vocab_size, **numbers)
    look = Attention(
        n_heads=n_heads, pattern=Causal(), position=Rotary(share=0.25, layout="halves"), dropout=recipe.model.dropout
    )
    branches = tuple(Normed(norm=LayerNorm(), part=part) for part in (look, Dense(d_ff=d_ff, activation="gelu-tanh")))
    block = Block(parts=(Branches(parts=branches),), residual=PreNorm(norm=NoNorm()))
    return _in_parallel(recipe, "gpt-neox", block, LMHead(weights="untied"))


@relative(
    "phi",
    parent="gpt-j",
    paper="Li et al. 2023, Textbooks Are All You Need II: phi-1.5 technical report, arXiv:2309.05463",
    changes="biases in attention, rotary positions in halves on half of each head",
)
def phi(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 32,
    d_ff: int = 8192,
    vocab_size: int = 51200,
    **numbers: Any,
) -> Recipe:
    """The released phi-1.5: 1.3 billion parameters, and 0.1 billion of an output layer of its own."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = gpt_j(**size, vocab_size=vocab_size, **numbers)
    look = Attention(
        n_heads=n_heads, pattern=Causal(), position=Rotary(share=0.5, layout="halves"), dropout=recipe.model.dropout
    )
    think = Dense(d_ff=d_ff, activation="gelu-tanh")
    block = Block(parts=(Branches(parts=(look, think)),), residual=PreNorm())
    return _in_parallel(recipe, "phi", block, LMHead(weights="untied", bias=True))
