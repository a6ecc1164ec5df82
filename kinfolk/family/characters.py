"""Character-level Transformers (Al-Rfou et al. 2018): deep decoders with auxiliary losses."""

from typing import Any

from kinfolk.family.assembly import with_feed_forward
from kinfolk.family.gpt import gpt
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.positions.position import LearnedAtDepth
from kinfolk.models.stack import Stack
from kinfolk.objectives.auxiliary import Auxiliary
from kinfolk.optim.optimiser import Momentum
from kinfolk.optim.schedule import Constant


@relative(
    "al-rfou",
    parent="gpt",
    paper="Al-Rfou et al. 2018, Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444",
    changes="64 layers of characters, learnt with losses of lower layers and further targets; positions in each layer",
)
def al_rfou(
    *,
    d_model: int = 512,
    n_layers: int = 64,
    n_heads: int = 2,
    d_ff: int = 2048,
    vocab_size: int = 263,
    dropout: float = 0.55,
    n_targets: int = 2,
    **numbers: Any,
) -> Recipe:
    """Section 3: the model T64; T12 is 12 layers. Momentum 0.99 at 0.003, rows of 512 characters."""
    recipe = gpt(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
        dropout=dropout,
        **numbers,
    )
    model = with_feed_forward(recipe.model, lambda think: think.replace(activation="relu")).replace(
        embedding=Tokens(), head=LMHead(bias=True)
    )
    decoder = model.decoder
    assert isinstance(decoder, Stack)
    model = model.replace(decoder=decoder.replace(position=LearnedAtDepth(n_layers=n_layers)))
    objective = Auxiliary(of=recipe.objective, n_targets=n_targets)
    training = recipe.training.replace(
        steps=4_000_000, batch_size=16, optimiser=Momentum(lr=0.003), schedule=Constant(warmup=0)
    )
    return recipe.replace(name="al-rfou", model=model, objective=objective, training=training)
