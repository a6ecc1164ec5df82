"""Synthesizers: attention scores that compare no tokens."""

from kinfolk.family.assembly import with_mixer
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.synthesizer import Form, Synthesizer
from kinfolk.models.model import Model


def synthesized(model: Model, form: Form, rank: int = 8) -> Model:
    """Make up the scores of every self-attention in this form, under the same pattern."""

    def change(look: Attention) -> Synthesizer:
        as_before = {name: getattr(look, name) for name in ("n_heads", "pattern", "bias", "dropout", "position")}
        return Synthesizer(form=form, rank=rank, **as_before)

    return with_mixer(model, change)


def _synthesized(form: Form, numbers: dict[str, int | float], rank: int = 8) -> Recipe:
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    return recipe.replace(name=f"synthesizer-{form}", model=synthesized(recipe.model, form, rank))


@relative(
    "synthesizer-dense",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="each token makes its row of attention scores from itself alone, whatever the others are",
)
def synthesizer_dense(**numbers: int | float) -> Recipe:
    """Scores from a layer of the query and a vector for each position of a key."""
    return _synthesized("dense", numbers)


@relative(
    "synthesizer-dense-plus",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="scores that each token makes by itself are added to those of comparison",
)
def synthesizer_dense_plus(**numbers: int | float) -> Recipe:
    """Dense scores plus dot products."""
    return _synthesized("dense-plus", numbers)


@relative(
    "synthesizer-dense-plus-alpha",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="scores that each token makes by itself and those of comparison, in a learned proportion",
)
def synthesizer_dense_plus_alpha(**numbers: int | float) -> Recipe:
    """Dense scores and dot products, weighed by one learned number per layer."""
    return _synthesized("dense-plus-alpha", numbers)


@relative(
    "synthesizer-factorized",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="attention scores are a learned table of low rank, the same for every text",
)
def synthesizer_factorized(*, rank: int = 8, **numbers: int | float) -> Recipe:
    """Random scores as the product of two tables of positions of this rank."""
    return _synthesized("factorized", numbers, rank)


@relative(
    "synthesizer-random",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="attention scores are a learned table, the same for every text",
)
def synthesizer_random(**numbers: int | float) -> Recipe:
    """Scores from a table of each head, drawn at random and learned."""
    return _synthesized("random", numbers)


@relative(
    "synthesizer-random-plus",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="a learned table of scores is added to those of comparison",
)
def synthesizer_random_plus(**numbers: int | float) -> Recipe:
    """Random scores plus dot products."""
    return _synthesized("random-plus", numbers)


@relative(
    "synthesizer-random-plus-alpha",
    parent="gpt2",
    paper="Tay et al. 2020, Synthesizer: Rethinking Self-Attention in Transformer Models, arXiv:2005.00743",
    changes="a learned table of scores and those of comparison, in a learned proportion",
)
def synthesizer_random_plus_alpha(**numbers: int | float) -> Recipe:
    """Random scores and dot products, weighed by one learned number per layer."""
    return _synthesized("random-plus-alpha", numbers)
