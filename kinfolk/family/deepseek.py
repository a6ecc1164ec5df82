"""Decoders with another attention in LLaMA's block: DeepSeek-V3 (latent attention, experts), DiffTransformer."""

import math
from typing import Any

from kinfolk.family.assembly import stack, with_mixers
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, SigmoidTopK
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.differential_attention import DifferentialAttention
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.latent_attention import LatentAttention
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import Part
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.objectives.multi_token import MultiToken


def latent(d_model: int, n_heads: int) -> LatentAttention:
    """Return the latent attention of the published width, and one in proportion for others."""
    if d_model == 7168:
        return LatentAttention(n_heads=n_heads, q_rank=1536, kv_rank=512, d_nope=128, d_rope=64, d_value=128)
    width = max(2, d_model // n_heads)
    return LatentAttention(
        n_heads=n_heads,
        q_rank=max(1, d_model // 2),
        kv_rank=max(1, d_model // 4),
        d_nope=width,
        d_rope=2 * max(1, width // 4),
        d_value=width,
    )


@relative(
    "deepseek-v3",
    parent="mixtral",
    paper="DeepSeek-AI 2024, DeepSeek-V3 Technical Report, arXiv:2412.19437; DeepSeek-V2 (latent attention), "
    "arXiv:2405.04434",
    topology="decoder",
    causal=True,
    changes="latent attention (MLA) caches one narrow vector per token; small and shared experts, balanced by biases; "
    "a module predicts one token more",
)
def deepseek_v3(
    *,
    d_model: int = 7168,
    n_layers: int = 61,
    n_heads: int = 128,
    d_ff: int = 27648,
    n_routed: int = 256,
    vocab_size: int = 129280,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Sections 2.1 and 4.2: 671 billion parameters; a module predicts the second next token in training (section 2.2).

    A token uses eight of `n_routed` experts and the shared one, which together are as wide as a dense layer.
    """
    recipe = llama(d_model=d_model, n_layers=n_layers, n_heads=1, vocab_size=vocab_size, max_len=max_len, **numbers)
    width, norm = max(9, d_ff * 2 // 3), RMSNorm()
    groups = {"n_groups": 8, "top_groups": 4} if n_routed == 256 else {}
    router = SigmoidTopK(k=8, scale=2.5, **groups)
    experts = GatedExperts(n_experts=n_routed, d_ff=width // 9, router=router)
    shared = Gated(d_ff=width // 9, activation="swish")
    dense: Part = Gated(d_ff=width, activation="swish")
    n_dense = min(3, n_layers // 2)

    def block(layer: int) -> Block:
        think = dense if layer < n_dense else Branches(parts=(experts, shared))
        return Block(parts=(latent(d_model, n_heads), think), residual=PreNorm(norm=norm))

    blocks = tuple(block(layer) for layer in range(n_layers))
    decoder = stack(blocks[0], n_layers).replace(blocks=blocks, norm=norm)
    objective = MultiToken(of=recipe.objective)
    return recipe.replace(name="deepseek-v3", model=recipe.model.replace(decoder=decoder), objective=objective)


@relative(
    "differential",
    parent="llama",
    paper="Ye et al. 2024, Differential Transformer, arXiv:2410.05258",
    changes="attention weights are the difference of two softmaxes with a learned factor; a norm behind each head",
)
def differential(
    *,
    d_model: int = 3072,
    n_layers: int = 28,
    n_heads: int = 24,
    d_ff: int = 12288,
    vocab_size: int = 100288,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Section 2 and appendix D: the 3B model, 12 heads of two softmaxes each."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 1}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)

    def look_of(look: Attention, layer: int) -> DifferentialAttention:
        start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        position = Rotary(base=10000.0, layout="halves")
        # softmaxes come in pairs
        return DifferentialAttention(
            n_heads=n_heads + n_heads % 2,
            d_head=d_model // n_heads if n_heads % 2 else 0,
            pattern=look.pattern,
            position=position,
            bias=False,
            start=start,
        )

    return recipe.replace(name="differential", model=with_mixers(recipe.model, look_of))
