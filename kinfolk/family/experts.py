"""Mixtures of experts, Switch, product-key memory: more parameters than a token uses."""

from kinfolk.family.assembly import with_feed_forwards
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers.feed_forwards.experts import Experts, NoisyTopK, Router, Switch, Top2
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.feed_forwards.product_key import ProductKey
from kinfolk.layers.part import FeedForward
from kinfolk.models.model import Model


def with_experts(model: Model, router: Router, n_experts: int, capacity: float, every: int) -> Model:
    """Make experts of the last of each `every` dense feed-forwards; with k choices each has 1 / k of the width."""

    def change(think: FeedForward, layer: int) -> FeedForward:
        if not isinstance(think, Dense) or (layer + 1) % every:
            return think
        return Experts(
            n_experts=n_experts,
            d_ff=think.d_ff // router.n_choices,
            activation=think.activation,
            bias=think.bias,
            router=router,
            capacity=capacity,
        )

    return with_feed_forwards(model, change)


@relative(
    "moe",
    parent="vanilla-pre",
    paper="Lepikhin et al. 2020, GShard, arXiv:2006.16668",
    changes="every second feed-forward is a mixture of experts, two of which see each token",
)
def moe(*, n_experts: int = 32, capacity: float = 2.0, every: int = 2, **numbers: int | float) -> Recipe:
    """Section 2, with experts of half the width, so that a token costs what it did (Narang et al. 2021)."""
    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="moe", model=with_experts(recipe.model, Top2(), n_experts, capacity, every))


@relative(
    "noisy-moe",
    parent="vanilla-pre",
    paper="Shazeer et al. 2017, Outrageously Large Neural Networks, arXiv:1701.06538",
    changes="every second feed-forward is a mixture of experts, by noisy top-k gating; no token is dropped",
)
def noisy_moe(*, n_experts: int = 32, k: int = 2, every: int = 2, **numbers: int | float) -> Recipe:
    """Their section 2 in the place of a feed-forward; the paper has it between recurrent layers."""
    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="noisy-moe", model=with_experts(recipe.model, NoisyTopK(k=k), n_experts, 0.0, every))


@relative(
    "switch",
    parent="moe",
    paper="Fedus et al. 2021, Switch Transformers, arXiv:2101.03961",
    changes="one expert sees each token",
)
def switch(*, n_experts: int = 32, capacity: float = 1.25, every: int = 2, **numbers: int | float) -> Recipe:
    """Section 2: the router is trained through the probability that multiplies its choice."""
    recipe = vanilla_pre(**numbers)
    return recipe.replace(name="switch", model=with_experts(recipe.model, Switch(), n_experts, capacity, every))


@relative(
    "product-key-memory",
    parent="gpt2",
    paper="Lample et al. 2019, Large Memory Layers with Product Keys, arXiv:1907.05242",
    changes="the last feed-forward but one is a memory of n_keys x n_keys values, a few of which are read",
)
def product_key(*, n_keys: int = 128, **numbers: int | float) -> Recipe:
    """Section 3, with the smallest of the paper's memories; its largest has 512 keys on each side."""
    recipe = gpt2(**numbers)  # type: ignore[arg-type]
    assert recipe.model.decoder is not None
    place = max(0, recipe.model.decoder.n_sublayers // 2 - 2)
    memory = ProductKey(n_keys=n_keys)
    model = with_feed_forwards(recipe.model, lambda think, layer: memory if layer == place else think)
    return recipe.replace(name="product-key-memory", model=model)
