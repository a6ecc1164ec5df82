"""Convolutional models: lightweight and dynamic convolutions, Hyena."""

from typing import Any

from kinfolk.family.assembly import with_mixers
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.convolution import DynamicConv, LightConv
from kinfolk.layers.mixers.hyena import Hyena
from kinfolk.layers.positions.position import NoPosition
from kinfolk.models.model import Model

KERNELS = (3, 7, 15, 31, 31, 31)
"""How far each layer reaches in the paper's translation models; layers beyond the last reach as far as it does."""


@relative(
    "lightweight-conv",
    parent="vanilla",
    year=2019,
    paper="Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions, arXiv:1901.10430",
    topology="encoder-decoder",
    causal=True,
    changes="self-attention becomes a convolution with a few normalised kernels; cross-attention stays",
)
def lightweight_conv(*, kernels: tuple[int, ...] = KERNELS, **numbers: int | float) -> Recipe:
    """Section 3: kernels shared inside heads, over a gated input."""
    return _convolved("lightweight-conv", LightConv, kernels, numbers)


@relative(
    "dynamic-conv",
    parent="vanilla",
    year=2019,
    paper="Wu et al. 2019, Pay Less Attention with Lightweight and Dynamic Convolutions, arXiv:1901.10430",
    topology="encoder-decoder",
    causal=True,
    changes="self-attention becomes a convolution whose kernels each position makes from its own input",
)
def dynamic_conv(*, kernels: tuple[int, ...] = KERNELS, **numbers: int | float) -> Recipe:
    """Section 4: as lightweight convolutions, with kernels of the position's own."""
    return _convolved("dynamic-conv", DynamicConv, kernels, numbers)


def convolved(model: Model, kind: type[LightConv | DynamicConv], kernels: tuple[int, ...]) -> Model:
    """Convolve as many heads as attended, in the direction in which they looked."""

    def change(look: Attention, layer: int) -> LightConv | DynamicConv:
        return kind(
            n_heads=look.n_heads,
            kernel=kernels[min(layer, len(kernels) - 1)],
            direction="past" if look.pattern.causal else "both",
            bias=look.bias,
            dropout=look.dropout,
        )

    return with_mixers(model, change)


def _convolved(
    name: str, kind: type[LightConv | DynamicConv], kernels: tuple[int, ...], numbers: dict[str, int | float]
) -> Recipe:
    recipe = vanilla(**numbers)  # type: ignore[arg-type]
    return recipe.replace(name=name, model=convolved(recipe.model, kind, kernels))


@relative(
    "hyena",
    parent="gpt2",
    year=2023,
    paper="Poli et al. 2023, Hyena Hierarchy: Towards Larger Convolutional Language Models, arXiv:2302.10866",
    topology="decoder",
    causal=True,
    changes="attention becomes a gated convolution as long as the sequence, whose kernel a small network makes from "
    "positions; none are added",
)
def hyena(
    *,
    d_model: int = 864,
    n_layers: int = 18,
    d_ff: int = 1728,
    max_len: int = 2048,
    order: int = 2,
    **numbers: Any,
) -> Recipe:
    """Section 3, with the numbers of the released 153M model of the Pile."""
    recipe = gpt2(d_model=d_model, n_layers=n_layers, d_ff=d_ff, max_len=max_len, **numbers)
    model = with_mixers(recipe.model, lambda look, layer: Hyena(order=order))
    assert isinstance(model.embedding, Tokens)
    return recipe.replace(name="hyena", model=model.replace(embedding=model.embedding.replace(position=NoPosition())))
