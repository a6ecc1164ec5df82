"""Universal Transformer: one block that runs again and again."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.assembly import shared, with_depth, with_feed_forward
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.feed_forwards.transition import ConvTransition
from kinfolk.layers.part import FeedForward
from kinfolk.layers.positions.position import DepthTime, NoPosition
from kinfolk.models.depth.halting import Halting, Universal
from kinfolk.models.stack import Stack

TRANSITIONS = ("feed-forward", "convolution")


@relative(
    "universal",
    parent="vanilla",
    paper="Dehghani et al. 2018, Universal Transformers, arXiv:1807.03819",
    changes="one block runs at every depth, with a sinusoid of position and depth added before every run",
)
def universal(
    *,
    d_model: int = 1024,
    n_heads: int = 16,
    d_ff: int = 4096,
    transition: str = "feed-forward",
    **numbers: Any,
) -> Recipe:
    """Section 2.1; `n_layers` is the number of runs, `transition` "feed-forward" or "convolution"."""
    if transition not in TRANSITIONS:
        raise SpecError(f"transition: unknown {transition!r}{suggest(transition, TRANSITIONS)}")
    recipe = vanilla(d_model=d_model, n_heads=n_heads, d_ff=d_ff, **numbers)

    def again(stack: Stack) -> Stack:
        return shared(stack).replace(position=DepthTime())

    def convolved(think: FeedForward) -> FeedForward:
        assert isinstance(think, Dense)
        return ConvTransition(d_ff=think.d_ff, bias=think.bias)

    assert isinstance(recipe.model.embedding, Tokens)
    model = with_depth(recipe.model, again)
    model = model.replace(embedding=recipe.model.embedding.replace(position=NoPosition()))
    if transition == "convolution":
        model = with_feed_forward(model, convolved)
    return recipe.replace(name="universal", model=model)


@relative(
    "universal-act",
    parent="universal",
    paper="Dehghani et al. 2018, Universal Transformers, arXiv:1807.03819",
    changes="each position decides after how many runs it halts",
)
def universal_act(*, ponder: float = 0.01, eps: float = 0.01, n_layers: int = 6, **numbers: Any) -> Recipe:
    """Section 2.2 and the published code: at most twice as many runs as layers."""
    recipe, halting = universal(n_layers=2 * n_layers, **numbers), Halting(ponder=ponder, eps=eps)

    def halts(stack: Stack) -> Universal:
        return Universal(
            blocks=stack.blocks, order=stack.order, norm=stack.norm, position=stack.position, halting=halting
        )

    return recipe.replace(name="universal-act", model=with_depth(recipe.model, halts))
