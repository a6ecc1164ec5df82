"""RMSNorm, ScaleNorm, ReZero, Fixup: relatives that normalise less or not at all."""

from kinfolk.family.assembly import with_feed_forward, with_residual
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers import init
from kinfolk.layers.feed_forwards.feed_forward import Dense, ShiftedDense
from kinfolk.layers.norms.norm import NoNorm, RMSNorm, ScaleNorm, Shift, ShiftScale
from kinfolk.layers.part import FeedForward
from kinfolk.layers.residuals import rezero as weighed
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.layers.residuals.rezero import ReZero
from kinfolk.models.model import Model


@relative(
    "rmsnorm",
    parent="vanilla-pre",
    paper="Zhang and Sennrich 2019, Root Mean Square Layer Normalization, arXiv:1910.07467",
    changes="norms divide by the root mean square; no mean is taken away and no bias added",
)
def rmsnorm(*, part: float = 1.0, **numbers: int | float) -> Recipe:
    """With `part` below 1 the first channels speak for all: the paper's pRMSNorm."""
    recipe, norm = vanilla_pre(**numbers), RMSNorm(part=part)
    return recipe.replace(name="rmsnorm", model=with_residual(recipe.model, PreNorm(norm=norm), norm))


@relative(
    "scalenorm",
    parent="vanilla-pre",
    paper="Nguyen and Salazar 2019, Transformers without Tears, arXiv:1910.05895",
    changes="norms give every vector one learned length",
)
def scalenorm(**numbers: int | float) -> Recipe:
    """Their ScaleNorm, without the other changes of the paper."""
    recipe, norm = vanilla_pre(**numbers), ScaleNorm()
    return recipe.replace(name="scalenorm", model=with_residual(recipe.model, PreNorm(norm=norm), norm))


@relative(
    "rezero",
    parent="gpt2",
    paper="Bachlechner et al. 2020, ReZero is All You Need, arXiv:2003.04887",
    changes="no norms: each branch is multiplied by a learned number that starts at zero",
)
def rezero(**numbers: int | float) -> Recipe:
    """At first the stack is the identity, at any depth."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    return recipe.replace(name="rezero", model=with_residual(recipe.model, ReZero(), NoNorm()))


@relative(
    "fixup",
    parent="vanilla-pre",
    paper="Zhang et al. 2019, Fixup Initialization: Residual Learning Without Normalization, arXiv:1901.09321",
    changes="no norms: branches start at zero and smaller with depth, with single numbers to shift and scale them",
)
def fixup(**numbers: int | float) -> Recipe:
    """Section 3 and its translation model; the tied output layer is drawn, where the paper's own starts at zero."""
    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="fixup", model=fixed_up(recipe.model))


def fixed_up(model: Model) -> Model:
    """Take the norms out of an encoder-decoder and put Fixup's numbers and beginnings in their place."""

    def shifted(think: FeedForward) -> FeedForward:
        assert isinstance(think, Dense)
        return ShiftedDense(d_ff=think.d_ff, activation=think.activation, bias=think.bias)

    encoder = with_residual(model, weighed.Fixup(), ShiftScale()).encoder
    changed = with_residual(model, weighed.Fixup(), Shift()).replace(encoder=encoder, init=init.FixupInit())
    return with_feed_forward(changed, shifted)
