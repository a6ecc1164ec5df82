"""Performer and the linear Transformer: decoders with kernelised, linear attention."""

from kinfolk.family.assembly import with_mixer
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.linear_attention import LinearAttention, Performer


@relative(
    "performer",
    parent="gpt2",
    paper="Choromanski et al. 2020, Rethinking Attention with Performers, arXiv:2009.14794",
    changes="the softmax is estimated from positive orthogonal random features, and keys are summed as they come",
)
def performer(*, n_features: int = 0, **numbers: int | float) -> Recipe:
    """Section 2: FAVOR+ in every layer; `n_features` 0 means d_head ln d_head."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    model = with_mixer(
        recipe.model,
        lambda look: Performer(
            n_heads=look.n_heads, n_features=n_features, bias=look.bias, d_head=look.d_head, position=look.position
        ),
    )
    return recipe.replace(name="performer", model=model)


@relative(
    "linear",
    parent="gpt2",
    paper="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236",
    changes="the softmax becomes an inner product of elu + 1 features, so that the decoder is a recurrent network",
)
def linear(**numbers: int | float) -> Recipe:
    """Section 3: a kernel whose features have the width of a head."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    model = with_mixer(
        recipe.model,
        lambda look: LinearAttention(n_heads=look.n_heads, bias=look.bias, d_head=look.d_head, position=look.position),
    )
    return recipe.replace(name="linear", model=model)
