"""Reformer: LSH attention alone, and with reversible layers and chunked feed-forwards."""

from kinfolk.family.assembly import with_depth, with_feed_forward, with_mixer
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.feed_forwards.feed_forward import Chunked
from kinfolk.layers.mixers.lsh_attention import Hashed, Hashing
from kinfolk.models.depth.reversible import Reversible
from kinfolk.ops.lsh_attention import RecentKeys


@relative(
    "reformer-lsh",
    parent="gpt2",
    paper="Kitaev et al. 2020, Reformer: The Efficient Transformer, arXiv:2001.04451",
    changes="one map makes queries and keys, and a token attends only to the last of those that hash like it",
)
def reformer_lsh(*, n_rounds: int = 4, sight: int = 64, **numbers: int | float) -> Recipe:
    """Section 2, with a sight of the last `sight` tokens of a bucket in place of chunks, which later tokens move."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    hashed = Hashed(n_heads=1, sight=RecentKeys(size=sight), hashing=Hashing(n_rounds=n_rounds))
    model = with_mixer(recipe.model, lambda look: hashed.replace(n_heads=look.n_heads, bias=look.bias))
    return recipe.replace(name="reformer-lsh", model=model)


@relative(
    "reformer",
    parent="reformer-lsh",
    paper="Kitaev et al. 2020, Reformer: The Efficient Transformer, arXiv:2001.04451",
    changes="the stream is two, so that inputs are found again from outputs; feed-forwards come in pieces",
)
def reformer(*, chunk: int = 256, **numbers: int | float) -> Recipe:
    """Section 3: memory for activations does not grow with depth, nor by the width of feed-forwards."""
    recipe = reformer_lsh(**numbers)  # type: ignore[arg-type]
    model = with_feed_forward(recipe.model, lambda think: Chunked(part=think, size=chunk))
    return recipe.replace(name="reformer", model=with_depth(model, Reversible.of))
