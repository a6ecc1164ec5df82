"""Linformer and memory-compressed attention: fewer keys and values than positions."""

from kinfolk.family.assembly import with_mixer, with_mixers
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.compressed_attention import Linformer, MemoryCompressed, Sharing
from kinfolk.layers.part import Mixer
from kinfolk.ops.patterns.leaves import Causal, SameBlock

RANK = 128
"""Of Linformer, where none is asked for."""


@relative(
    "linformer",
    parent="bert",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
    changes="keys and values of all positions are mixed into a fixed number of slots by learned maps",
)
def linformer(*, max_len: int = 512, rank: int = 0, sharing: Sharing = "headwise", **numbers: int | float) -> Recipe:
    """Section 4; `rank` 0 is a quarter of the positions up to the paper's 128 for 512, and 128 beyond.

    A rank that grew with the positions would make the cost quadratic again; by theorem 2 it need not.
    """
    recipe = masked_only(bert(max_len=max_len, **numbers))  # type: ignore[arg-type]
    model = with_mixer(
        recipe.model,
        lambda look: Linformer(
            n_heads=look.n_heads,
            rank=rank or min(RANK, max(1, max_len // 4)),
            sharing=sharing,
            bias=look.bias,
            dropout=look.dropout,
        ),
    )
    return recipe.replace(name="linformer", model=model)


@relative(
    "dmca",
    parent="gpt2",
    paper="Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences, arXiv:1801.10198",
    changes="layers look in turn at their own block of tokens and at windows of three tokens of the whole past",
)
def dmca(
    *, n_layers: int = 5, max_len: int = 11_000, block: int = 256, stride: int = 3, **numbers: int | float
) -> Recipe:
    """Transformer-DMCA: local and memory-compressed layers alternate, the first and the last are local."""

    def change(look: Attention, layer: int) -> Mixer:
        if layer % 2 == 0:
            return look.replace(pattern=Causal() & SameBlock(size=block))
        return MemoryCompressed(n_heads=look.n_heads, stride=stride, bias=look.bias, dropout=look.dropout)

    recipe = gpt2(n_layers=n_layers, max_len=max_len, **numbers)  # type: ignore[arg-type]
    return recipe.replace(
        name="dmca", model=with_mixers(recipe.model, change), training=recipe.training.replace(length=max_len)
    )
