"""Decoders whose attention does more than a softmax: Primer, Canon, the Forgetting Transformer, gated attention."""

from typing import Any

from kinfolk.family.assembly import with_depth, with_feed_forward, with_mixer, with_mixers
from kinfolk.family.gpt import gpt2
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.attention_extras import ForgetGate, HeadGate, QKVConv, ValueResidual
from kinfolk.layers.mixers.canon_conv import CanonConv
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.residuals.hyper_connections import HyperConnections
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.depth.skips import EmbeddingSkip, HyperStreams, ShareValues
from kinfolk.models.stack import Stack


@relative(
    "primer",
    parent="gpt2",
    year=2021,
    paper="So et al. 2021, Primer: Searching for Efficient Transformers for Language Modeling, arXiv:2109.08668",
    topology="decoder",
    causal=True,
    changes="squared ReLU, and a depthwise convolution of width 3 behind queries, keys and values",
)
def primer(**numbers: Any) -> Recipe:
    """Section 3: the two changes that carry over (Primer-EZ), in the body and with the numbers of GPT-2."""
    recipe = gpt2(**numbers)
    model = with_feed_forward(recipe.model, lambda think: think.replace(activation="squared-relu"))
    model = with_mixer(model, lambda look: ExtendedAttention.of(look, QKVConv()))
    return recipe.replace(name="primer", model=model)


@relative(
    "canon",
    parent="llama",
    year=2025,
    paper="Allen-Zhu 2025, Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers, "
    "arXiv:2512.17351",
    topology="decoder",
    causal=True,
    changes="short causal convolutions with a residual before attention, on queries, keys and values, and before the "
    "feed-forward",
)
def canon(**numbers: Any) -> Recipe:
    """Canon-A, B and C of their four places; D, inside the feed-forward, is left out. The numbers are Llama's."""
    recipe = llama(**numbers)
    inside = QKVConv(kernel=4, form="add")
    model = with_mixer(recipe.model, lambda look: ExtendedAttention.of(look, inside))

    def convolved(depth: Stack) -> Stack:
        blocks = (b.replace(parts=tuple(CanonConv(part=part) for part in b.parts)) for b in depth.blocks)
        return depth.replace(blocks=tuple(blocks))

    return recipe.replace(name="canon", model=with_depth(model, convolved))


@relative(
    "forgetting",
    parent="llama",
    year=2025,
    paper="Lin et al. 2025, Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv:2503.02130",
    topology="decoder",
    causal=True,
    changes="scores decay by forget gates made from the input, in the place of positions",
)
def forgetting(
    *,
    d_model: int = 1536,
    n_layers: int = 24,
    n_heads: int = 24,
    d_ff: int = 6144,
    vocab_size: int = 50277,
    max_len: int = 16384,
    **numbers: Any,
) -> Recipe:
    """Section 3 in the block of LLaMA (their FoX without the parts called Pro): about 760 million parameters."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 1}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)

    def look_of(look: Attention, layer: int) -> ExtendedAttention:
        return ExtendedAttention.of(look.replace(position=NoPosition()), ForgetGate())

    return recipe.replace(name="forgetting", model=with_mixers(recipe.model, look_of))


@relative(
    "gated-attention",
    parent="llama",
    year=2025,
    paper="Qiu et al. 2025, Gated Attention for Large Language Models: Non-linearity, Sparsity, and "
    "Attention-Sink-Free, arXiv:2505.06708",
    topology="decoder",
    causal=True,
    changes="a sigmoid gate on every channel of the heads' outputs, before the output map",
)
def gated_attention(**numbers: Any) -> Recipe:
    """Section 2, gate G1 behind the softmax; the numbers are Llama's."""
    recipe = llama(**numbers)
    model = with_mixer(recipe.model, lambda look: ExtendedAttention.of(look, HeadGate()))
    return recipe.replace(name="gated-attention", model=model)


@relative(
    "value-residual",
    parent="llama",
    year=2024,
    paper="Zhou et al. 2024, Value Residual Learning (ResFormer), arXiv:2410.17897",
    topology="decoder",
    causal=True,
    changes="every layer mixes the values of the first layer into its own, with learned shares",
)
def value_residual(**numbers: Any) -> Recipe:
    """Section 3: ResFormer with learned shares; the numbers are Llama's."""
    recipe = llama(**numbers)

    def look_of(look: Attention, layer: int) -> ExtendedAttention:
        return ExtendedAttention.of(look, ValueResidual(role="takes" if layer else "gives"))

    model = with_depth(with_mixers(recipe.model, look_of), lambda depth: depth.wrap(ShareValues()))
    return recipe.replace(name="value-residual", model=model)


@relative(
    "x0-skip",
    parent="llama",
    year=2024,
    paper="Jordan et al. 2024, modded-nanogpt, github.com/KellerJordan/modded-nanogpt",
    topology="decoder",
    causal=True,
    changes="every block reads a learned mix of the stream and the embedding",
)
def x0_skip(**numbers: Any) -> Recipe:
    """Two numbers per block, 1 and 0 at first; the numbers of the model are Llama's."""
    recipe = llama(**numbers)
    return recipe.replace(name="x0-skip", model=with_depth(recipe.model, lambda depth: depth.wrap(EmbeddingSkip())))


@relative(
    "hyper-connections",
    parent="llama",
    year=2024,
    paper="Zhu et al. 2024, Hyper-Connections, arXiv:2409.19606",
    topology="decoder",
    causal=True,
    changes="four residual streams; parts read a learned mix of them, and streams mix with each other",
)
def hyper_connections(*, n_streams: int = 4, **numbers: Any) -> Recipe:
    """Section 3, dynamic; the numbers of the model are Llama's."""
    recipe = llama(**numbers)

    def streamed(depth: Stack) -> Stack:
        blocks = []
        for layer, block in enumerate(depth.blocks):
            assert isinstance(block.residual, PreNorm)
            blocks.append(block.replace(residual=HyperConnections(n=n_streams, first=layer, norm=block.residual.norm)))
        return depth.replace(blocks=tuple(blocks)).wrap(HyperStreams(n=n_streams))

    return recipe.replace(name="hyper-connections", model=with_depth(recipe.model, streamed))
