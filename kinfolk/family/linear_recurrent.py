"""RetNet, GLA, HGRN2, DeltaNet, Gated DeltaNet, KDA: decoders with linear attention and a recurrent state.

All have LLaMA's block around them. Where papers differ from one another in the feed-forward or the norm, this is the
body in which they have been compared.
"""

from collections.abc import Callable
from typing import Any

from kinfolk.family.assembly import with_mixers
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.decay import ChannelStepDecay, FixedDecay, LowRankDecay, StepDecay, TiedDecay
from kinfolk.layers.mixers.linear_recurrence import LinearRecurrence
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import Mixer
from kinfolk.layers.positions.relative import Rotary


def recurrent(name: str, change: Callable[[Attention, int], Mixer], **numbers: Any) -> Recipe:
    """Put a mixer in the place of every attention of LLaMA; `change` gets the attention and the number of the layer."""
    recipe = llama(**numbers)
    return recipe.replace(name=name, model=with_mixers(recipe.model, change))


def gated_delta(d_model: int, n_heads: int, **changes: Any) -> LinearRecurrence:
    """Return the mixer of Gated DeltaNet, whose keys are 3/4 as wide as the model and values twice as wide as keys."""
    d_key = max(1, 3 * d_model // (4 * n_heads))
    fields: dict[str, Any] = {"n_heads": n_heads, "d_key": d_key, "d_value": 2 * d_key, "decay": StepDecay()}
    fields |= {"update": "delta", "features": "swish-unit", "kernel": 4, "gate": "swish"}
    return LinearRecurrence(**fields | changes)


@relative(
    "retnet",
    parent="llama",
    paper="Sun et al. 2023, Retentive Network: A Successor to Transformer for Large Language Models, arXiv:2307.08621",
    changes="retention: linear attention whose state decays by a fixed factor of each head, values twice as wide, "
    "norms of heads and a swish gate",
)
def retnet(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 8,
    d_ff: int = 4096,
    vocab_size: int = 32000,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Sections 2.1 and 2.2 and table 7: the 1.3B model; its feed-forward has 4 d_model^2 parameters, as here.

    The paper does not state its vocabulary; 32,000 is that of flash-linear-attention's configuration.
    """
    retention = LinearRecurrence(
        n_heads=n_heads,
        d_value=2 * d_model // n_heads,
        decay=FixedDecay(),
        position=Rotary(base=10000.0, layout="halves"),
        gate="swish",
    )
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    size |= {"vocab_size": vocab_size, "max_len": max_len}
    return recurrent("retnet", lambda look, layer: retention, **size, **numbers)


@relative(
    "gla",
    parent="retnet",
    paper="Yang et al. 2023, Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv:2312.06635",
    changes="every channel of the keys decays by a factor made from the input; half as wide keys, no positions",
)
def gla(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 4,
    d_ff: int = 8448,
    vocab_size: int = 32000,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Section 4.4: the 1.3B model."""
    mixer = LinearRecurrence(
        n_heads=n_heads, d_key=max(1, d_model // (2 * n_heads)), decay=LowRankDecay(), gate="swish",
        d_value=d_model // n_heads,
    )  # fmt: skip
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    size |= {"vocab_size": vocab_size, "max_len": max_len}
    return recurrent("gla", lambda look, layer: mixer, **size, **numbers)


@relative(
    "hgrn2",
    parent="gla",
    paper="Qin et al. 2024, HGRN2: Gated Linear RNNs with State Expansion, arXiv:2404.07904",
    changes="keys are what the forget gate lets go, with a lower bound that grows with depth; the output gate is the "
    "query",
)
def hgrn2(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 16,
    d_ff: int = 8448,
    vocab_size: int = 32000,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Heads of width 128; the numbers of flash-linear-attention's configuration."""

    def mixer(look: Attention, layer: int) -> LinearRecurrence:
        return LinearRecurrence(n_heads=n_heads, decay=TiedDecay(floor=layer / n_layers), features="swish-query")

    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    return recurrent("hgrn2", mixer, **size, vocab_size=vocab_size, max_len=max_len, **numbers)


@relative(
    "deltanet",
    parent="llama",
    paper="Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length, "
    "arXiv:2406.06484; Schlag et al. 2021, Linear Transformers Are Secretly Fast Weight Programmers, arXiv:2102.11174",
    changes="linear attention that corrects its state: what a key finds is replaced by its value; short convolutions",
)
def deltanet(
    *,
    d_model: int = 2048,
    n_layers: int = 24,
    n_heads: int = 16,
    d_ff: int = 8448,
    vocab_size: int = 32000,
    max_len: int = 2048,
    **numbers: Any,
) -> Recipe:
    """Section 3.3: the 1.3B model, heads of width 128."""
    mixer = LinearRecurrence(n_heads=n_heads, update="delta", features="swish-unit", kernel=4)
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    size |= {"vocab_size": vocab_size, "max_len": max_len}
    return recurrent("deltanet", lambda look, layer: mixer, **size, **numbers)


@relative(
    "gated-deltanet",
    parent="deltanet",
    paper="Yang et al. 2024, Gated Delta Networks: Improving Mamba2 with Delta Rule, arXiv:2412.06464",
    changes="the state of the delta rule decays by a factor of each head made from the input; an output gate",
)
def gated_deltanet(
    *,
    d_model: int = 2400,
    n_layers: int = 16,
    n_heads: int = 9,
    d_ff: int = 8832,
    vocab_size: int = 32000,
    max_len: int = 4096,
    **numbers: Any,
) -> Recipe:
    """Section 3 with the numbers of the released 1.3B configuration.

    Keys are 3/4 as wide as the model, values twice as wide as keys (9 heads of 200 and 400).
    """
    mixer = gated_delta(d_model, n_heads)
    # the size has as many heads as the mixer; the attention that it replaces wants a divisor of the width
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": 1, "d_ff": d_ff}
    size |= {"vocab_size": vocab_size, "max_len": max_len}
    return recurrent("gated-deltanet", lambda look, layer: mixer, **size, **numbers)


@relative(
    "kda",
    parent="gated-deltanet",
    paper="Kimi Team 2025, Kimi Linear: An Expressive, Efficient Attention Architecture, arXiv:2510.26692",
    changes="every channel of the keys decays by itself; a sigmoid output gate of low rank",
)
def kda(
    *,
    d_model: int = 2304,
    n_layers: int = 27,
    n_heads: int = 32,
    d_ff: int = 13824,
    vocab_size: int = 163840,
    max_len: int = 8192,
    **numbers: Any,
) -> Recipe:
    """Section 3: Kimi Delta Attention in every layer of a dense model with the widths of Kimi Linear 48B-A3B.

    Heads of the published width are 128 wide, others d_model / n_heads; the feed-forward is that of its dense layer.
    """
    width = 128 if d_model == 2304 else d_model // n_heads
    widths = {"d_key": width, "d_value": width, "gate_rank": width}
    mixer = gated_delta(d_model, n_heads, decay=ChannelStepDecay(), norm=RMSNorm(eps=1e-5), gate="sigmoid", **widths)
    # the attention that it replaces wants a divisor of the width
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": 1, "d_ff": d_ff}
    size |= {"vocab_size": vocab_size, "max_len": max_len}
    return recurrent("kda", lambda look, layer: mixer, **size, **numbers)
