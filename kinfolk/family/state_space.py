"""State-space decoders, and hybrids with attention as orders of blocks: Mamba, Mamba-2, Griffin, Jamba, Qwen3-Next."""

from typing import Any

from kinfolk.family.assembly import with_depth, with_feed_forward, with_feed_forwards, with_mixers, with_residual
from kinfolk.family.linear_recurrent import gated_delta
from kinfolk.family.llama import llama, olmo2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, TopK
from kinfolk.layers.feed_forwards.token_gate import TokenGated
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.attention_extras import HeadGate
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.mixers.mamba import Mamba, Mamba2
from kinfolk.layers.mixers.rg_lru import RGLRU
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import FeedForward, Mixer
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal, Window


def alone(recipe: Recipe, name: str, mixer: Mixer) -> Recipe:
    """Return a decoder whose blocks are a mixer and nothing else, with tied embeddings."""
    model = recipe.model
    decoder = model.decoder
    assert isinstance(decoder, Stack)
    block = Block(parts=(mixer,), residual=PreNorm(norm=RMSNorm(eps=1e-5)))
    return recipe.replace(
        name=name, model=model.replace(decoder=decoder.replace(blocks=(block,) * len(decoder.blocks)), head=LMHead())
    )


@relative(
    "mamba",
    parent="llama",
    paper="Gu and Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, arXiv:2312.00752",
    topology="decoder",
    causal=True,
    changes="one kind of part, a gated selective state space with a short convolution, in the place of attention and "
    "feed-forward; no positions, tied embeddings",
)
def mamba(
    *,
    d_model: int = 2560,
    n_layers: int = 64,
    n_heads: int = 1,
    d_state: int = 16,
    d_ff: int = 1,
    vocab_size: int = 50280,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Section 3: the released 2.8B model. It has no heads and no feed-forward, so their numbers do nothing."""
    body = llama(d_model=d_model, n_layers=n_layers, n_heads=1, vocab_size=vocab_size, max_len=max_len, **numbers)
    return alone(body, "mamba", Mamba(d_state=d_state))


@relative(
    "mamba2",
    parent="mamba",
    paper="Dao and Gu 2024, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured "
    "State Space Duality, arXiv:2405.21060",
    topology="decoder",
    causal=True,
    changes="one decay per head, eight times the state, all maps of the input in parallel, a norm behind the gate",
)
def mamba2(
    *,
    d_model: int = 2560,
    n_layers: int = 64,
    n_heads: int = 80,
    d_state: int = 128,
    d_ff: int = 1,
    vocab_size: int = 50288,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Section 7: the released 2.7B model. It has no feed-forward, so d_ff does nothing."""
    body = llama(d_model=d_model, n_layers=n_layers, n_heads=1, vocab_size=vocab_size, max_len=max_len, **numbers)
    return alone(body, "mamba2", Mamba2(n_heads=n_heads, d_state=d_state))


@relative(
    "griffin",
    parent="llama",
    paper="De et al. 2024, Griffin: Mixing Gated Linear Recurrences with Local Attention, arXiv:2402.19427",
    topology="decoder",
    causal=True,
    changes="two layers with a gated linear recurrence (RG-LRU) to one with local multi-query attention, GeGLU, scaled "
    "embeddings",
)
def griffin(
    *,
    d_model: int = 2560,
    n_layers: int = 26,
    n_heads: int = 10,
    d_ff: int = 11520,
    window: int = 0,
    vocab_size: int = 256000,
    max_len: int = 8192,
    **numbers: Any,
) -> Recipe:
    """Section 2 with the numbers of RecurrentGemma 2B; `window` 0 means max_len / 4 (2,048), at least 16.

    Every third layer attends; with fewer layers the last one does. RecurrentGemma also has a bias behind the output
    map of attention.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    norm, every = RMSNorm(gain="one-plus"), max(2, min(3, n_layers))
    local = Causal() & Window(left=(window or max(16, max_len // 4)) - 1)

    def mixer(look: Attention, layer: int) -> Mixer:
        if (layer + 1) % every:
            return RGLRU(n_heads=n_heads)
        position = Rotary(base=10000.0, layout="halves", share=0.5)
        return look.replace(n_kv_heads=1, pattern=local, position=position)

    model = with_mixers(with_residual(recipe.model, PreNorm(norm=norm), norm), mixer)
    model = with_feed_forward(model, lambda think: think.replace(activation="gelu-tanh", bias=True))
    return recipe.replace(name="griffin", model=model.replace(embedding=Tokens(scale="sqrt"), head=LMHead()))


@relative(
    "jamba",
    parent="mamba",
    paper="Lieber et al. 2024, Jamba: A Hybrid Transformer-Mamba Language Model, arXiv:2403.19887",
    topology="decoder",
    causal=True,
    changes="seven layers of Mamba to one of attention without positions, a feed-forward behind each, every second one "
    "a mixture of experts",
)
def jamba(
    *,
    d_model: int = 4096,
    n_layers: int = 32,
    n_heads: int = 32,
    d_ff: int = 21504,
    every: int = 8,
    n_experts: int = 16,
    vocab_size: int = 65536,
    max_len: int = 262144,
    **numbers: Any,
) -> Recipe:
    """Section 3.1: each of `n_experts` experts is as wide as a dense feed-forward, and a token uses two.

    Norms inside the Mamba layers keep a large model stable (section 6.4). The released code does not renormalise the
    weights of the chosen experts.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    every = max(2, min(every, n_layers))

    def mixer(look: Attention, layer: int) -> Mixer:
        return Mamba(norm=RMSNorm()) if layer % every != every // 2 else look.replace(position=NoPosition())

    def think_of(think: FeedForward, layer: int) -> FeedForward:
        assert isinstance(think, Gated)
        experts = GatedExperts(n_experts=n_experts, d_ff=think.d_ff, router=TopK(k=2, balance=0.001))
        return experts if layer % 2 else think

    model = with_feed_forwards(with_mixers(recipe.model, mixer), think_of)
    model = with_residual(model, PreNorm(norm=RMSNorm()), RMSNorm())
    return recipe.replace(name="jamba", model=model)


@relative(
    "qwen3-next",
    parent="gated-deltanet",
    paper="Qwen Team 2025, Qwen3-Next: Towards Ultimate Training & Inference Efficiency",
    topology="decoder",
    causal=True,
    changes="three layers of the gated delta rule to one of gated attention with QK-norm and partial rotary "
    "positions; small experts and a shared one",
)
def qwen3_next(
    *,
    d_model: int = 2048,
    n_layers: int = 48,
    n_heads: int = 16,
    d_ff: int = 8448,
    n_routed: int = 512,
    every: int = 4,
    vocab_size: int = 151936,
    max_len: int = 262144,
    **numbers: Any,
) -> Recipe:
    """The released 80B-A3B: a token uses ten of `n_routed` experts and a gated shared one, eleven times 512 wide.

    Heads of the published width are 256 wide, others d_model / n_heads; the linear layers have twice as many heads of
    values as of keys. `d_ff` is the dense width of what a token uses.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 8}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    norm, every = RMSNorm(gain="one-plus"), max(2, min(every, n_layers))
    rotary = Rotary(base=1e7, layout="halves", share=0.25)
    width, d_key = max(1, d_ff * 2 // 3 // 11), max(1, d_model // n_heads)
    delta = gated_delta(d_model, 2 * n_heads, n_key_heads=n_heads, d_key=d_key, d_value=d_key)
    router = TopK(k=min(10, n_routed), balance=0.001)
    shared = TokenGated(part=Gated(d_ff=width, activation="swish"))
    think = Branches(parts=(GatedExperts(n_experts=n_routed, d_ff=width, router=router), shared))

    def mixer(look: Attention, layer: int) -> Mixer:
        if (layer + 1) % every:
            return delta
        look = look.replace(position=rotary, qk_norm=norm, d_head=256 if d_model == 2048 else d_key)
        return ExtendedAttention.of(look, HeadGate())

    def mixed(depth: Stack) -> Stack:
        return depth.replace(blocks=tuple(b.replace(parts=(b.parts[0], think)) for b in depth.blocks))

    model = with_mixers(with_residual(recipe.model, PreNorm(norm=norm), norm), mixer)
    return recipe.replace(name="qwen3-next", model=with_depth(model, mixed))


@relative(
    "olmo-hybrid",
    parent="olmo2",
    paper="OLMo Team 2026, OLMo Hybrid; Grazzi et al. 2024, Unlocking State-Tracking in Linear RNNs Through Negative "
    "Eigenvalues, arXiv:2411.12537",
    topology="decoder",
    causal=True,
    changes="three layers of Gated DeltaNet, with rates up to 2 and pre-norm, to one of attention without positions",
)
def olmo_hybrid(
    *,
    d_model: int = 3840,
    n_layers: int = 32,
    n_heads: int = 30,
    d_ff: int = 16512,
    every: int = 4,
    max_len: int = 65536,
    **numbers: Any,
) -> Recipe:
    """The released 7B configuration; keys of the linear layers 3/4 as wide as the model, values twice as wide."""
    recipe = olmo2(d_model=d_model, n_layers=n_layers, n_heads=n_heads, d_ff=d_ff, max_len=max_len, **numbers)
    every = max(2, min(every, n_layers))
    delta = gated_delta(d_model, n_heads, update="signed-delta", norm=RMSNorm(eps=1e-5))

    def mixer(look: Attention, layer: int) -> Mixer:
        return delta if (layer + 1) % every else look.replace(position=NoPosition())

    model, norm = with_mixers(recipe.model, mixer), PreNorm(norm=RMSNorm())

    def joined(depth: Stack) -> Stack:
        blocks = (b.replace(residual=norm) if b.parts[0] == delta else b for b in depth.blocks)
        return depth.replace(blocks=tuple(blocks))

    return recipe.replace(name="olmo-hybrid", model=with_depth(model, joined))
