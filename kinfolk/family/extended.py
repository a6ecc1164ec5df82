"""Primer, Canon, the Forgetting Transformer, gated attention: decoders with additions to attention."""

from typing import Any

from kinfolk.family.assembly import with_depth, with_feed_forward, with_mixer, with_mixers, with_residual
from kinfolk.family.gpt import gpt2
from kinfolk.family.llama import llama, with_eps
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import ShownTokens, Tokens
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.feed_forwards.scaled_gated import ScaledGated
from kinfolk.layers.heads.scaled_head import ScaledLMHead
from kinfolk.layers.init import UnitRows
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.attention_extras import ForgetGate, HeadGate, QKVConv, ValueResidual
from kinfolk.layers.mixers.canon_conv import CanonConv, CanonGated
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.mixers.unit_scores import UnitScores
from kinfolk.layers.mixers.value_embedding import ValueEmbedding
from kinfolk.layers.norms.norm import NoNorm, UnitNorm
from kinfolk.layers.part import FeedForward
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.hyper_connections import HyperConnections
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.layers.residuals.spherical import SphericalStep
from kinfolk.models.depth.depth import Depth
from kinfolk.models.depth.mixture_of_depths import MixtureOfDepths
from kinfolk.models.depth.skips import EmbeddingSkip, HyperStreams, ShareValues
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.optim.schedule import Cosine
from kinfolk.optim.sphere import SphereAdamW


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
    """Primer-EZ, the two changes that matter most, in the body and with the numbers of GPT-2."""
    recipe = gpt2(**numbers)
    model = with_feed_forward(recipe.model, lambda think: think.replace(activation="squared-relu"))
    model = with_mixer(model, lambda look: ExtendedAttention.of(look, QKVConv()))
    return recipe.replace(name="primer", model=model)


def with_canon(model: Model) -> Model:
    """Add Canon layers before attention (A), on queries, keys and values (B), before (C) and inside (D) gated MLPs."""
    inside = QKVConv(kernel=4, form="add")
    model = with_mixer(model, lambda look: ExtendedAttention.of(look, inside))

    def think_of(think: FeedForward) -> FeedForward:
        assert isinstance(think, Gated)
        return CanonGated(d_ff=think.d_ff, activation=think.activation)

    def convolved(depth: Stack) -> Stack:
        blocks = (b.replace(parts=tuple(CanonConv(part=part) for part in b.parts)) for b in depth.blocks)
        return depth.replace(blocks=tuple(blocks))

    return with_depth(with_feed_forward(model, think_of), convolved)


@relative(
    "canon",
    parent="llama",
    year=2025,
    paper="Allen-Zhu 2025, Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers, "
    "arXiv:2512.17351",
    topology="decoder",
    causal=True,
    changes="short causal convolutions with a residual before attention, on queries, keys and values, before the "
    "feed-forward and inside it",
)
def canon(**numbers: Any) -> Recipe:
    """Canon-ABCD, all four places; the numbers are Llama's.

    The released LlamaCanon-8B has the same widths and rotates a quarter of each head, with base 100,000.
    """
    recipe = llama(**numbers)
    return recipe.replace(name="canon", model=with_canon(recipe.model))


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
    vocab_size: int = 50257,
    max_len: int = 16384,
    **numbers: Any,
) -> Recipe:
    """FoX (LLaMA), without the parts called Pro: the 760M model, which counts one of its two embedding matrices."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 1}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)

    def look_of(look: Attention, layer: int) -> ExtendedAttention:
        return ExtendedAttention.of(look.replace(position=NoPosition()), ForgetGate())

    return recipe.replace(name="forgetting", model=with_eps(with_mixers(recipe.model, look_of), 1e-6))


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
    """Section 2.2, gate G1 behind the softmax; the numbers are Llama's."""
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
    """ResFormer with learned shares; the numbers are Llama's."""
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
    """Record 9 (2024-11-06): two numbers per block, 1 and 0 at first; the numbers of the model are Llama's."""
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
    """Section 2.2, dynamic; the numbers of the model are Llama's."""
    recipe = llama(**numbers)

    def streamed(depth: Stack) -> Stack:
        blocks = []
        for layer, block in enumerate(depth.blocks):
            assert isinstance(block.residual, PreNorm)
            blocks.append(block.replace(residual=HyperConnections(n=n_streams, first=layer, norm=block.residual.norm)))
        return depth.replace(blocks=tuple(blocks)).wrap(HyperStreams(n=n_streams))

    return recipe.replace(name="hyper-connections", model=with_depth(recipe.model, streamed))


@relative(
    "value-embeddings",
    parent="value-residual",
    year=2024,
    paper="Koszarsky 2024 in Jordan et al. 2024, modded-nanogpt, github.com/KellerJordan/modded-nanogpt",
    topology="decoder",
    causal=True,
    changes="the first and the last layers mix a vector of the token, from a table of their own, into their values",
)
def value_embeddings(*, n_tables: int = 3, **numbers: Any) -> Recipe:
    """Three tables, each for one of the first and one of the last layers (record 17); the numbers are Llama's."""
    recipe = llama(**numbers)
    decoder = recipe.model.decoder
    assert decoder is not None
    n = decoder.n_layers
    n_tables = max(1, min(n_tables, n // 2))

    def look_of(look: Attention, layer: int) -> Attention:
        table = layer if layer < n_tables else layer - (n - n_tables)
        return look if table < 0 else ExtendedAttention.of(look, ValueEmbedding(table=table))

    model = with_mixers(recipe.model, look_of).replace(embedding=ShownTokens())
    return recipe.replace(name="value-embeddings", model=model)


@relative(
    "ngpt",
    parent="llama",
    year=2024,
    paper="Loshchilov et al. 2024, nGPT: Normalized Transformer with Representation Learning on the Hypersphere, "
    "arXiv:2410.01131",
    topology="decoder",
    causal=True,
    changes="hidden states, queries, keys and rows of all matrices are unit vectors; parts take steps of learned sizes "
    "on the sphere, gains restore the size of logits",
)
def ngpt(
    *,
    d_model: int = 1280,
    n_layers: int = 36,
    n_heads: int = 20,
    d_ff: int = 7680,
    vocab_size: int = 32000,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Section 2 and table 2: the 1B model. Training has no warm-up and no weight decay (section 2.6)."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 1}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)

    def look_of(look: Attention) -> ExtendedAttention:
        root = (d_model // n_heads) ** 0.5
        return ExtendedAttention.of(look.replace(scale=root, position=Rotary(base=10000.0)), UnitScores())

    def think_of(think: FeedForward) -> FeedForward:
        assert isinstance(think, Gated)
        return ScaledGated(d_ff=think.d_ff, activation=think.activation)

    model = with_residual(recipe.model, SphericalStep(), NoNorm())
    model = with_feed_forward(with_mixer(model, look_of), think_of).replace(
        embedding=Tokens(norm=UnitNorm()), head=ScaledLMHead(weights="untied"), init=UnitRows()
    )
    training = recipe.training.replace(optimiser=SphereAdamW(lr=1.5e-3), schedule=Cosine(warmup=0))
    return recipe.replace(name="ngpt", model=model, training=training)


@relative(
    "mixture-of-depths",
    parent="llama",
    year=2024,
    paper="Raposo et al. 2024, Mixture-of-Depths: Dynamically allocating compute in transformer-based language models, "
    "arXiv:2404.02258",
    topology="decoder",
    causal=True,
    changes="every second block changes an eighth of the positions only, which a router chooses",
)
def mixture_of_depths(*, capacity: float = 0.125, **numbers: Any) -> Recipe:
    """Section 3, capacity 12.5 % in every second block; the numbers of the model are Llama's."""
    recipe = llama(**numbers)

    def routed(depth: Stack) -> Depth:
        return depth.wrap(MixtureOfDepths(capacity=capacity, every=min(2, depth.n_layers)))

    model = with_depth(recipe.model, routed)
    return recipe.replace(name="mixture-of-depths", model=model)
