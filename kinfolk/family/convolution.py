"""Relatives that convolve where others attend: lightweight and dynamic convolutions."""

from kinfolk.family.assembly import with_mixers
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.convolution import DynamicConv, LightConv
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
