"""Adaptive softmax and inputs, mixture of softmaxes: relatives that treat their vocabulary otherwise."""

from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.adaptive import Adaptive, AdaptiveSoftmax
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.mixture_of_softmaxes import MixtureHead


@relative(
    "adaptive-softmax",
    parent="gpt2",
    paper="Grave et al. 2017, Efficient softmax approximation for GPUs, arXiv:1609.04309",
    changes="rare words are predicted in two steps, their cluster and then the word, from narrower states",
)
def adaptive_softmax(*, divisor: int = 4, **numbers: int | float) -> Recipe:
    """Two clusters of rare words, at 3/40 and 9/40 of the vocabulary; `divisor` 1 is the form without projections."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    head = AdaptiveSoftmax(cutoffs=cutoffs(recipe.model.vocab_size), widths=widths(recipe.model.d_model, divisor))
    return recipe.replace(name="adaptive-softmax", model=recipe.model.replace(head=head))


@relative(
    "adaptive-input",
    parent="adaptive-softmax",
    paper="Baevski and Auli 2018, Adaptive Input Representations for Neural Language Modeling, arXiv:1809.10853",
    changes="rare words have narrower embeddings too, shared with the softmax",
)
def adaptive_input(*, divisor: int = 4, **numbers: int | float) -> Recipe:
    """Section 3; the first cluster, as wide as the model, has no map here."""
    recipe = adaptive_softmax(divisor=divisor, **numbers)
    before, head = recipe.model.embedding, recipe.model.head
    assert isinstance(before, Tokens)
    assert isinstance(head, AdaptiveSoftmax)
    embedding = Adaptive(cutoffs=head.cutoffs, widths=head.widths, position=before.position)
    model = recipe.model.replace(embedding=embedding, head=head.replace(weights="tied"))
    return recipe.replace(name="adaptive-input", model=model)


@relative(
    "mixture-of-softmaxes",
    parent="gpt2",
    paper="Yang et al. 2018, Breaking the Softmax Bottleneck, arXiv:1711.03953",
    changes="fifteen softmaxes are mixed, so that log-probabilities are not bound to the rank of the states",
)
def mixture_of_softmaxes(*, n_components: int = 15, **numbers: int | float) -> Recipe:
    """Section 2.4."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    model = recipe.model.replace(head=MixtureHead(n_components=n_components))
    return recipe.replace(name="mixture-of-softmaxes", model=model)


def cutoffs(vocab_size: int) -> tuple[int, int]:
    """Cut a vocabulary where the paper of adaptive inputs cut that of WikiText-103, in proportion."""
    return max(1, vocab_size * 3 // 40), max(2, vocab_size * 9 // 40)


def widths(d_model: int, divisor: int) -> tuple[int, ...]:
    """Divide from cluster to cluster; two numbers would not tell a thousand words apart, so models stop at sixteen."""
    return tuple(min(d_model, max(16, d_model // divisor**i)) for i in range(3))
