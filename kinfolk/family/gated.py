"""GLU variants: gated feed-forwards (Shazeer 2020)."""

from kinfolk.family.assembly import with_feed_forward
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.part import FeedForward
from kinfolk.ops.activated_linear import Activation


@relative(
    "glu",
    parent="vanilla-pre",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    changes="feed-forwards multiply two maps of their input, one through a sigmoid, at two thirds of the width",
)
def glu(*, activation: Activation = "sigmoid", **numbers: int | float) -> Recipe:
    """Section 2, at as many weights as `d_ff` gives a dense one."""

    def gated(think: FeedForward) -> FeedForward:
        assert isinstance(think, Dense)
        return Gated.at_equal_parameters(think, activation)

    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="glu", model=with_feed_forward(recipe.model, gated))


@relative(
    "geglu",
    parent="glu",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    changes="the gate is a GELU",
)
def geglu(**numbers: int | float) -> Recipe:
    """Equation 6."""
    return glu(activation="gelu-tanh", **numbers).replace(name="geglu")


@relative(
    "swiglu",
    parent="glu",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    changes="the gate is a Swish",
)
def swiglu(**numbers: int | float) -> Recipe:
    """Equation 6."""
    return glu(activation="swish", **numbers).replace(name="swiglu")


@relative(
    "reglu",
    parent="glu",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    changes="the gate is a rectifier",
)
def reglu(**numbers: int | float) -> Recipe:
    """Equation 6."""
    return glu(activation="relu", **numbers).replace(name="reglu")


@relative(
    "liglu",
    parent="glu",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    changes="the gate is linear: a product of two maps",
)
def liglu(**numbers: int | float) -> Recipe:
    """Equation 5, the bilinear form."""
    return glu(activation="identity", **numbers).replace(name="liglu")
