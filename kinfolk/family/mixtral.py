"""Mixtral and gpt-oss: decoders with mixtures of gated experts.

`d_ff` is the width of a dense feed-forward with as many parameters as those that a token uses, as everywhere in the
family: two gated experts of 14,336 are 43,008.
"""

from typing import Any

from kinfolk.family.assembly import with_feed_forward, with_mixers
from kinfolk.family.llama import llama, rebased
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, TopK
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.softmax import Sink
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.positions.rope_scaling import YarnScaling
from kinfolk.ops.patterns.leaves import Causal, Window


@relative(
    "mixtral",
    parent="mistral",
    paper="Jiang et al. 2024, Mixtral of Experts, arXiv:2401.04088",
    changes="every feed-forward is a mixture of eight gated experts, two of which see each token; no window",
)
def mixtral(
    *,
    d_ff: int = 43008,
    n_experts: int = 8,
    k: int = 2,
    vocab_size: int = 32000,
    max_len: int = 32768,
    **numbers: Any,
) -> Recipe:
    """Section 2 and table 1: the 8x7B model."""
    recipe = llama(d_ff=d_ff, vocab_size=vocab_size, max_len=max_len, **numbers)
    experts = GatedExperts(n_experts=n_experts, d_ff=max(1, d_ff * 2 // 3 // k), router=TopK(k=k, balance=0.02))
    model = with_feed_forward(rebased(recipe.model, 1e6), lambda think: experts)
    return recipe.replace(name="mixtral", model=model)


@relative(
    "gpt-oss",
    parent="mixtral",
    paper="OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, arXiv:2508.10925",
    changes="attention sinks, a window in every second layer, biases, experts with clamped gated units, YaRN",
)
def gpt_oss(
    *,
    d_model: int = 2880,
    n_layers: int = 24,
    n_heads: int = 64,
    d_ff: int = 17280,
    n_experts: int = 32,
    window: int = 0,
    vocab_size: int = 201088,
    max_len: int = 131072,
    **numbers: Any,
) -> Recipe:
    """Section 2 and table 1: the 20B model. `window` 0: max_len / 1,024 (128 of 131,072), at least 16.

    Heads of the published width are 64 wide, others d_model / n_heads.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "group": 8, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    scaling = YarnScaling(factor=32.0, original=4096, ends="exact")
    rotary = Rotary(base=150000.0, layout="halves", scaling=scaling)
    local = Causal() & Window(left=(window or max(16, max_len // 1024)) - 1)
    experts = GatedExperts(
        n_experts=n_experts,
        d_ff=max(1, d_ff * 2 // 3 // 4),
        activation="clamped-swish",
        bias=True,
        router=TopK(k=4, bias=True),
    )

    def look_of(look: Attention, layer: int) -> Attention:
        width = 64 if d_model == 2880 else 0
        look = look.replace(d_head=width, bias=True, softmax=Sink(), position=rotary)
        return look if layer % 2 else look.replace(pattern=local)

    model = with_feed_forward(with_mixers(recipe.model, look_of), lambda think: experts)
    return recipe.replace(name="gpt-oss", model=model)
